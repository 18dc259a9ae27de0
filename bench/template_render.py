#!/usr/bin/env python3
"""template_render.py TEMPLATE.jinja ...: the same rendering as bench/template_render.c, by Jinja2."""
import pathlib, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/data/templates"))
import reference

texts = ["Could you explain how the tides work, and why there are two of them each day?",
         "The moon pulls the near side of the ocean more than the Earth's centre, and the centre more than the far "
         "side.\n\nSo the water bulges on both sides, and the Earth turns below them."]
messages = [{"role": "assistant" if i % 2 else "user", "content": texts[i % 2]} for i in range(20)]
for name in sys.argv[1:]:
    begin = time.perf_counter()
    template = reference.environment().from_string(pathlib.Path(name).read_text())
    parse = (time.perf_counter() - begin) * 1e6
    best = 1e9
    try:
        for _ in range(30):
            begin = time.perf_counter()
            for _ in range(5):
                out = template.render(messages=messages, tools=None, documents=None, add_generation_prompt=True,
                                      bos_token="<s>", eos_token="</s>")
            best = min(best, (time.perf_counter() - begin) * 1e6 / 5)
    except Exception as e:
        print(f"{pathlib.Path(name).name:50} refuses: {e}")
        continue
    print(f"{pathlib.Path(name).name:50} parse_us {parse:8.1f} render_us {best:8.1f} bytes {len(out.encode())}")

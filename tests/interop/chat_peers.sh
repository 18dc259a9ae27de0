#!/usr/bin/env bash
# chat_peers.sh [BUILD]: packages that speak to OpenAI's and Anthropic's APIs against `tinkc serve --chat-apis`, each in an
# environment of its own. By hand: it needs a package index. Exits 1 on a difference, 77 where one cannot be installed.
set -u
. "$(dirname "$0")/server.sh" tinkc "${1:-}"
pins=/dev/null # they need different versions of the openai package, so each has its own pin here alone

work=$(mktemp -d)
# nano with a template that takes tools, and that needs a content and the arguments as an object
mkdir "$work/tools"
ln -s "$model"/* "$work/tools"
cat > "$work/tools/chat_template.jinja" << 'END'
{%- if tools %}{{- '<|im_start|>system\n' + (tools | tojson) + ' <tool_call><|im_end|>\n' }}{% endif %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content }}
{%- for call in m.tool_calls or [] %}{% for key, value in call.function.arguments | items %}{{ key }}={{ value }} {% endfor %}{% endfor %}
{{- '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
END
"$build/tinkc" serve --chat-apis --port 0 --store "$work/store" --ready-fd 3 "nano=$model" "tools=$work/tools" 3> "$work/url" 2> "$work/log" &
pid=$!
await "$work/url" http || exit 1
rc=0
for which in langchain-openai==1.7.3:langchain_openai langchain-anthropic==1.7.7:langchain_anthropic instructor==1.17.0:instructor \
    litellm==1.106.2:litellm openai-agents==0.24.0:agents "pydantic-ai-slim[openai]==2.68.0:pydantic_ai"; do
    module=${which##*:} which=${which%:*}
    name=${which%%==*}
    name=${name%%[*}
    if ! packages "$name" "$module" "$which"; then
        echo "skipped: $which cannot be installed (no package index?)"
        [ $rc = 1 ] || rc=77
        continue
    fi
    timeout 300 "$venv/bin/python" "$here/chat_peers.py" "$name" "$(cat "$work/url")" || rc=1
done
kill "$pid" 2> /dev/null
wait "$pid" 2> /dev/null
clean_up $rc
exit $rc

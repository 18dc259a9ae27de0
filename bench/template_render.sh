#!/usr/bin/env bash
# template_render.sh [BUILD]: rendering a chat of 20 messages, ours and Jinja2's beside it where it can be
# installed. Takes the shared templates too, where they are there.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
venv=$build/bench-venv-jinja
files=(tests/data/templates/*.jinja)
shared=../shared/data/chat_templates
for name in Qwen-Qwen3-0.6B Qwen3.5-4B meta-llama-Llama-3.1-8B-Instruct deepseek-ai-DeepSeek-V3.1 openai-gpt-oss-120b \
    Kimi-K2.6 NVIDIA-Nemotron-3-Nano-30B-A3B-BF16; do
    [ -f "$shared/$name.jinja" ] && files+=("$shared/$name.jinja")
done
echo "ours:"
status=0
"$build/bench/template_render" "${files[@]}" || status=1
if [ -x "$venv/bin/python" ] && "$venv/bin/python" -c 'import jinja2' 2> /dev/null ||
    { python3 -m venv "$venv" && "$venv/bin/pip" install -q jinja2==3.1.6; } > /dev/null 2>&1; then
    echo "Jinja2:"
    "$venv/bin/python" bench/template_render.py "${files[@]}"
else
    echo "Jinja2 cannot be installed here (no package index within reach): no figures beside ours."
fi
exit $status

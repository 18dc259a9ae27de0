#!/usr/bin/env bash
# The templates of tests/data, and of the shared data where it is there, against what Jinja2 renders.
set -eu
build=$1
own=tests/data/templates
"$build/tests/jinja_check" $own/units.json
"$build/tests/jinja_check" $own/sweep.json
"$build/tests/template_check" $own $own/cases.json $own/golden.json
# a check that cannot fail is none
sed 's/"text": "\(.\)/"text": "x\1/' $own/golden.json > "$build/golden-broken.json"
if "$build/tests/template_check" $own $own/cases.json "$build/golden-broken.json" > /dev/null; then
    echo "template_check does not see differences"
    exit 1
fi
shared=../shared/data/chat_templates
if [ -d $shared ]; then # real templates, where they lie beside the checkout
    "$build/tests/jinja_check" $shared/jinja_units.json
    "$build/tests/template_check" $shared $shared/cases.json $shared/golden.json
    "$build/tests/template_check" $shared $shared/cases.json $shared/golden_continue_final.json
fi

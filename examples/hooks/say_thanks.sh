#!/bin/sh
# A Stop hook: it refuses once, and lets go when the turn already went on for it.
if grep -q '"stop_hook_active": true'; then
    echo '{"systemMessage": "it was polite in the end"}'
else
    echo '{"decision": "block", "reason": "Say thank you first."}'
fi

#!/bin/sh
# A PreToolUse hook: exit 2 refuses the call, standard error is the reason.
echo "this project removes nothing" >&2
exit 2

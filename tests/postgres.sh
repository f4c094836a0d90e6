#!/usr/bin/env bash
# postgres.sh FOLDER: a PostgreSQL of its own in FOLDER (made here, removed by the caller), on a Unix socket there and on no
# port. Prints "ready" when it takes connections; ends with its parent. For tests of room store.
set -euo pipefail
folder=$1
bin=
for at in /usr/lib/postgresql/*/bin "$(dirname "$(command -v postgres || echo /none)")"; do
    [ -x "$at/initdb" ] && [ -x "$at/pg_isready" ] && bin=$at
done
[ -n "$bin" ] || { echo "there is no PostgreSQL here" >&2; exit 3; }
mkdir -p "$folder"
as=() # PostgreSQL does not run as root
if [ "$(id -u)" = 0 ]; then
    chown postgres "$folder"
    as=(setpriv --reuid=postgres --regid=postgres --clear-groups)
fi
"${as[@]}" "$bin/initdb" -D "$folder/data" -A trust -U nereid --no-sync --no-locale -E UTF8 >"$folder/../initdb.$$.log" 2>&1 || { cat "$folder/../initdb.$$.log" >&2; exit 1; }
rm -f "$folder/../initdb.$$.log"
(
    until "$bin/pg_isready" -q -h "$folder" -U nereid -d postgres; do sleep 0.05; done
    echo ready
) &
exec "${as[@]}" "$bin/postgres" -D "$folder/data" -k "$folder" -c listen_addresses= -c fsync=off -c logging_collector=off

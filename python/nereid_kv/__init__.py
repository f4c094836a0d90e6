"""KV cache node of this machine, over libnereid_kv.so (include/nereid_kv.h says what to rely on).

    with Client("/run/nereid/kv.sock", staging_bytes=64 << 20) as kv:
        ns = kv.open(Namespace(digest=..., block_tokens=128, history_bytes=114048))
        kv.put(ns, Object(key, block=0), data)
        found = kv.lookup(ns, keys)
        with kv.get(ns, objects, wait=1.0) as got:
            got.copy_into(0, buffer)

A Client belongs to one thread; after fork() only the parent may use it. Failures are KvError; a miss is not one.
"""

from ._client import Client, Found, Got, KvError, Namespace, Object, ObjectStatus

__all__ = ["Client", "Found", "Got", "KvError", "Namespace", "Object", "ObjectStatus"]
__version__ = "0.1.0"

/* libnereid_kv: an engine's access to the KV cache node of its machine.
 *
 * The library speaks kv-wire (docs/formats/kv-wire.md) over a Unix socket and shares two pieces of
 * memory with the node: the arena, mapped read-only here, where cached objects lie, and a staging
 * region of the client's own, where objects lie that it puts.
 *
 *   nereid_kv_connect -> nereid_kv_submit_open -> then, per request:
 *     reuse: submit_lookup (how much is there?)  -> submit_get (lease)  -> nereid_kv_copy / _view
 *            -> submit_release
 *     save:  submit_reserve -> nereid_kv_stage, fill -> submit_commit (or nereid_kv_put)
 *
 * Every submit_* writes one message and returns; its answer is a completion with the same tag, taken
 * by nereid_kv_wait (one tag) or nereid_kv_poll (any). With a null `tag` the answer is dropped: for
 * releases and aborts. nereid_kv_fd is a descriptor that is readable
 * when poll has something: give it to epoll, poll(2) or asyncio.
 *
 * What to rely on: a lookup is an estimate; a get is a promise for as long as its lease. Whatever
 * fails is a miss: compute it. Leases, reservations and waits end by themselves at their deadline and
 * with the connection; nothing has to be cleaned up after a crash of either side.
 *
 * Threads: a handle belongs to one thread at a time; make one per thread. The library starts no
 * thread, installs no signal handler, reads no environment and writes to no descriptor but its own
 * (all close-on-exec). After fork() only the parent may use a handle: in the child every call but
 * nereid_kv_close returns NEREID_KV_FORKED, and close leaves the parent's connection alone.
 *
 * Functions return 0 (NEREID_KV_OK) or a negative nereid_kv_status; the text is in
 * nereid_kv_error(). No function throws or aborts on what the node sends.
 */
#ifndef NEREID_KV_H
#define NEREID_KV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NEREID_KV_ABI 1
#define NEREID_KV_API __attribute__((visibility("default")))

typedef struct nereid_kv nereid_kv;

typedef enum {
    NEREID_KV_OK = 0,
    NEREID_KV_INVALID = -1,     /* an argument, or an answer to it, says so; see nereid_kv_error */
    NEREID_KV_UNAVAILABLE = -2, /* no node there, or it closed: make a new handle, later */
    NEREID_KV_TIMEOUT = -3,     /* nothing came in time; the tag stays valid */
    NEREID_KV_DENIED = -4,      /* not this user, or a wrong capability */
    NEREID_KV_GONE = -5,        /* the bytes are not there any more: the lease ended. A miss */
    NEREID_KV_CORRUPT = -6,     /* the bytes fail their CRC. A miss */
    NEREID_KV_NO_SPACE = -7,    /* no memory here, or no room in the staging region */
    NEREID_KV_FORKED = -8,      /* the handle belongs to the parent process */
    NEREID_KV_REFUSED = -9      /* the node answered with an error; see nereid_kv_error */
} nereid_kv_status;

/* Of one object in an answer. The numbers are those of kv-wire. */
enum {
    NEREID_KV_OBJECT_OK = 0,
    NEREID_KV_OBJECT_MISS = 1,
    NEREID_KV_OBJECT_EXISTS = 2,    /* reserve: there already, its life was extended */
    NEREID_KV_OBJECT_IN_FLIGHT = 3, /* reserve: another is writing it */
    NEREID_KV_OBJECT_NO_SPACE = 4,
    NEREID_KV_OBJECT_TIMED_OUT = 5, /* get: not there by wait_ms */
    NEREID_KV_OBJECT_CORRUPT = 6,
    NEREID_KV_OBJECT_EXPIRED = 7, /* commit: too late */
    NEREID_KV_OBJECT_FOREIGN = 8, /* commit, abort: another client's reservation */
    NEREID_KV_OBJECT_UNKNOWN = 9,
    NEREID_KV_OBJECT_INVALID = 10,
    NEREID_KV_OBJECT_FAILED = 11
};

typedef struct {
    uint8_t bytes[16]; /* docs/formats/block-key.md */
} nereid_kv_key;

typedef struct {
    nereid_kv_key key;
    uint32_t block; /* index in its prompt, from 0 */
    uint8_t kind;   /* 0 history, 1 state */
    uint8_t reserved[3];
} nereid_kv_object;

/* Sizes and rules of a namespace (kv/namespace.h, Geometry). */
typedef struct {
    uint8_t digest[32];
    uint8_t capability[32]; /* from the gateway: HMAC-SHA-256 by the node's secret */
    uint64_t tenant;
    uint64_t history_bytes; /* of one object, exactly */
    uint64_t state_bytes;
    uint32_t block_tokens;
    uint32_t keep_tokens; /* a hit leaves at least so many tokens to compute; >= 1 */
    uint32_t window_tokens;
    uint32_t replay_tokens;
    uint32_t checkpoint_blocks;
    uint32_t replay; /* 0 none, 1 approximate window, 2 exact window, 3 stored state */
    uint64_t ttl_s;  /* of puts that name none; 0 = the node's default */
} nereid_kv_namespace;

/* Where an object lies in the arena, under a lease. Opaque but for `length`. */
typedef struct {
    uint64_t offset;
    uint32_t length; /* 0: not there */
    uint32_t crc;
    uint64_t stamp;
    uint64_t key_hi, key_lo;
} nereid_kv_place;

typedef struct {
    uint64_t reservation;
    uint64_t offset; /* in the staging region */
    uint32_t length;
    uint32_t crc; /* CRC-32C of the bytes: nereid_kv_crc32c */
} nereid_kv_commit_item;

typedef struct {
    uint8_t type; /* 0 stored, 1 removed, 2 cleared */
    uint8_t tier; /* 1 memory, 2 SSD */
    uint8_t reserved[2];
    uint32_t ns; /* as numbered here; 0xffffffff: unknown */
    uint32_t block;
    uint32_t reserved2;
    uint64_t key_hi, key_lo; /* the node's name of the object */
} nereid_kv_event;

typedef enum {
    NEREID_KV_OP_OPEN = 1,
    NEREID_KV_OP_LOOKUP,
    NEREID_KV_OP_GET,
    NEREID_KV_OP_RENEW,
    NEREID_KV_OP_RELEASE,
    NEREID_KV_OP_RESERVE,
    NEREID_KV_OP_COMMIT,
    NEREID_KV_OP_ABORT,
    NEREID_KV_OP_SUBSCRIBE,
    NEREID_KV_OP_CLEAR,
    NEREID_KV_OP_STATS,
    NEREID_KV_OP_FLIGHT /* a follower's news, with the tag of its reserve */
} nereid_kv_op;

/* An answer. Pointers are valid until the next nereid_kv_wait or nereid_kv_poll on the handle. */
typedef struct {
    uint64_t tag;
    int32_t op;
    int32_t status; /* of the whole command */
    uint32_t ns;    /* open */
    uint64_t epoch; /* open, lookup, subscribe: of the node; changes when it restarts or clears */
    /* lookup */
    uint32_t blocks;        /* contiguous from first_block */
    uint32_t usable_blocks; /* under the namespace's rules, when prompt_tokens was given */
    uint32_t compute_from;  /* first token to compute then */
    uint32_t dram_blocks;   /* of `blocks`, in memory */
    uint32_t state;         /* 1: and the state object of the last usable block */
    /* get */
    uint64_t lease;
    uint32_t contiguous; /* objects before the first that is not OK */
    /* get, reserve, commit: of each object */
    uint32_t count;
    const uint8_t *object_status;
    const nereid_kv_place *places; /* get: `place_count`, length 0 where not OK */
    uint32_t place_count;
    const uint64_t *reservations; /* reserve; 0 unless OK */
    /* flight */
    uint32_t object;
    uint64_t reservation;
    /* subscribe */
    uint64_t first, next;
    uint32_t gap; /* 1: events were missed, read everything anew */
    uint32_t event_count;
    const nereid_kv_event *events;
    /* stats: JSON, zero-terminated */
    const char *text;
} nereid_kv_completion;

NEREID_KV_API int nereid_kv_abi(void);

/* Connects, exchanges versions, maps the arena and makes a staging region of `staging_bytes` (0 =
 * none: a reader). Blocks up to `timeout_ms`. `*out` is set only on success. */
NEREID_KV_API int nereid_kv_connect(const char *socket_path, const char *name,
                                    uint64_t staging_bytes, uint32_t timeout_ms, nereid_kv **out);
NEREID_KV_API void nereid_kv_close(nereid_kv *kv); /* null is fine */
/* What the last failing call on this handle (null: the last connect of this thread) was about. */
NEREID_KV_API const char *nereid_kv_error(const nereid_kv *kv);

/* Of the node's memory: what is leased at once should be a small part of it. */
NEREID_KV_API uint64_t nereid_kv_arena_bytes(const nereid_kv *kv);

/* Readable when nereid_kv_poll has something (or the connection broke). Owned by the handle. */
NEREID_KV_API int nereid_kv_fd(const nereid_kv *kv);
/* Takes up to `max` completions; waits for the first one up to `timeout_ms` (-1: for ever). Returns
 * their number, 0 after the timeout, or a status. */
NEREID_KV_API int nereid_kv_poll(nereid_kv *kv, nereid_kv_completion *out, size_t max,
                                 int timeout_ms);
/* The completion of one tag; others stay for later. NEREID_KV_OK also if out->status is an error. */
NEREID_KV_API int nereid_kv_wait(nereid_kv *kv, uint64_t tag, int timeout_ms,
                                 nereid_kv_completion *out);

NEREID_KV_API int nereid_kv_submit_open(nereid_kv *kv, const nereid_kv_namespace *ns,
                                        uint64_t *tag);
/* Keys of blocks first_block, first_block + 1, ... `prompt_tokens` 0: no rule is applied. */
NEREID_KV_API int nereid_kv_submit_lookup(nereid_kv *kv, uint32_t ns, uint32_t first_block,
                                          const nereid_kv_key *keys, size_t count,
                                          uint32_t prompt_tokens, uint64_t *tag);
#define NEREID_KV_JOIN_WRITES 1u     /* objects that are being written count as coming */
#define NEREID_KV_DO_NOT_STOP 2u     /* answer every object for itself, not up to the first miss */
NEREID_KV_API int nereid_kv_submit_get(nereid_kv *kv, uint32_t ns, const nereid_kv_object *objects,
                                       size_t count, uint32_t lease_ms, uint32_t wait_ms,
                                       uint32_t flags, uint64_t *tag);
NEREID_KV_API int nereid_kv_submit_renew(nereid_kv *kv, uint64_t lease, uint32_t hold_ms,
                                         uint64_t *tag);
NEREID_KV_API int nereid_kv_submit_release(nereid_kv *kv, uint64_t lease, uint64_t *tag);
#define NEREID_KV_ATTACH 1u /* of objects in flight: tell me how it ends (op FLIGHT) */
NEREID_KV_API int nereid_kv_submit_reserve(nereid_kv *kv, uint32_t ns,
                                           const nereid_kv_object *objects, size_t count,
                                           uint32_t hold_ms, uint64_t ttl_s, uint32_t flags,
                                           uint64_t *tag);
NEREID_KV_API int nereid_kv_submit_commit(nereid_kv *kv, const nereid_kv_commit_item *items,
                                          size_t count, uint64_t *tag);
NEREID_KV_API int nereid_kv_submit_abort(nereid_kv *kv, const uint64_t *reservations, size_t count,
                                         uint64_t *tag);
NEREID_KV_API int nereid_kv_submit_subscribe(nereid_kv *kv, uint64_t from, uint32_t limit,
                                             uint32_t wait_ms, uint64_t *tag);
NEREID_KV_API int nereid_kv_submit_clear(nereid_kv *kv, uint32_t ns, uint64_t *tag);
/* For people and tools, answered as JSON in `text`: 0 statistics, 1 objects in memory (the first
 * thousands), 2 verify one more segment on SSD. */
NEREID_KV_API int nereid_kv_submit_stats(nereid_kv *kv, uint8_t what, uint64_t *tag);

/* What only the client knows, since its last report; it goes into the node's metrics. No answer. */
typedef struct {
    uint64_t saved;          /* objects */
    uint64_t save_dropped;   /* not offered: queue full, or the node was given up */
    uint64_t save_failed;    /* offered, and not taken */
    uint64_t fetched;        /* arrived whole */
    uint64_t fetch_timeouts; /* computed instead */
    uint64_t fetch_failed;   /* given by the node, and gone or damaged on arrival */
    uint64_t skipped;        /* not asked: the node was given up */
    uint64_t troubles;       /* times that it was */
} nereid_kv_client_counts;
NEREID_KV_API int nereid_kv_report(nereid_kv *kv, const nereid_kv_client_counts *counts);

/* Room in the staging region, 4 KiB aligned; `*offset` is what commit wants. Null: no room. The node
 * reads it until the commit is answered; then give it back. */
NEREID_KV_API void *nereid_kv_stage(nereid_kv *kv, uint32_t bytes, uint64_t *offset);
NEREID_KV_API void nereid_kv_unstage(nereid_kv *kv, uint64_t offset);
NEREID_KV_API uint32_t nereid_kv_crc32c(const void *data, size_t bytes);

/* The object where it lies, without a copy: good while the lease holds; call nereid_kv_valid after
 * the last use (0: it still was). The CRC is not checked: the node did, when it came in. */
NEREID_KV_API const void *nereid_kv_view(nereid_kv *kv, const nereid_kv_place *place);
NEREID_KV_API int nereid_kv_valid(nereid_kv *kv, const nereid_kv_place *place);

typedef struct {
    void *to;
    uint64_t at; /* in the object */
    uint64_t length;
    uint32_t layer; /* pieces of a layer are neighbours in the list */
    uint32_t reserved;
} nereid_kv_piece;
/* Copies pieces of an object to where they belong. Pieces that cover it one after another are
 * checked against its CRC in the same pass; others by the stamp alone. After the last piece of a
 * layer `layer_done` is called (may be null): its bytes are complete, but the object is known to be
 * good only when this returns 0; whoever starts on them early throws the result away otherwise. */
NEREID_KV_API int nereid_kv_copy(nereid_kv *kv, const nereid_kv_place *place,
                                 const nereid_kv_piece *pieces, size_t count,
                                 void (*layer_done)(void *context, uint32_t layer), void *context);

/* Reserve, stage, commit of one object, waiting for each. *object_status as above: EXISTS and
 * IN_FLIGHT are not errors. */
NEREID_KV_API int nereid_kv_put(nereid_kv *kv, uint32_t ns, const nereid_kv_object *object,
                                const void *data, uint32_t length, uint64_t ttl_s, int timeout_ms,
                                uint8_t *object_status);

#ifdef __cplusplus
}
#endif
#endif

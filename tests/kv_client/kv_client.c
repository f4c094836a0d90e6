/* An engine in miniature over the C ABI of libnereid_kv. usage: kv_client_c SOCKET [fork|kill]
 *   (nothing)  puts, looks up, gets, copies by layer, subscribes, releases
 *   fork       the same handle in a forked child is refused, the parent's goes on
 *   kill       holds a lease, a reservation and a waiting get, then dies by SIGKILL */
#include <nereid_kv.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x)                                                                      \
    do {                                                                              \
        if (!(x)) {                                                                   \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #x, nereid_kv_error(kv)); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

enum { kBytes = 50000, kCount = 8 };
static nereid_kv *kv;

static nereid_kv_completion wait_for(uint64_t tag) {
    nereid_kv_completion c;
    CHECK(nereid_kv_wait(kv, tag, 10000, &c) == 0);
    CHECK(c.status == 0);
    return c;
}

static uint32_t open_namespace(void) {
    nereid_kv_namespace ns;
    uint64_t tag;
    memset(&ns, 0, sizeof ns);
    memset(ns.digest, 7, sizeof ns.digest);
    ns.history_bytes = kBytes;
    ns.block_tokens = 64;
    ns.keep_tokens = 1;
    CHECK(nereid_kv_submit_open(kv, &ns, &tag) == 0);
    return wait_for(tag).ns;
}

static void layer_done(void *context, uint32_t layer) {
    uint32_t *next = context;
    CHECK(*next == layer);
    ++*next;
}

static void round_trip(uint32_t ns, const nereid_kv_object *objects, unsigned char *data) {
    nereid_kv_key keys[kCount];
    nereid_kv_completion c;
    nereid_kv_place places[kCount];
    uint64_t tag, lease;
    unsigned char *out = malloc(kBytes);
    for (uint32_t i = 0; i < kCount; ++i) {
        uint8_t status = 255;
        memset(data, (int)(i + 1), kBytes);
        CHECK(nereid_kv_put(kv, ns, &objects[i], data, kBytes, 3600, 10000, &status) == 0);
        CHECK(status == NEREID_KV_OBJECT_OK || status == NEREID_KV_OBJECT_EXISTS);
        keys[i] = objects[i].key;
    }
    CHECK(nereid_kv_submit_lookup(kv, ns, 0, keys, kCount, kCount * 64 + 10, &tag) == 0);
    CHECK(wait_for(tag).blocks == kCount);
    CHECK(nereid_kv_submit_get(kv, ns, objects, kCount, 5000, 5000, 0, &tag) == 0);
    c = wait_for(tag);
    CHECK(c.contiguous == kCount && c.place_count == kCount);
    lease = c.lease;
    memcpy(places, c.places, sizeof places);
    for (uint32_t i = 0; i < kCount; ++i) {
        uint32_t layers = 0;
        const nereid_kv_piece pieces[2] = {{out, 0, 20000, 0, 0},
                                           {out + 20000, 20000, kBytes - 20000, 1, 0}};
        memset(data, (int)(i + 1), kBytes);
        CHECK(nereid_kv_copy(kv, &places[i], pieces, 2, layer_done, &layers) == 0);
        CHECK(layers == 2 && memcmp(out, data, kBytes) == 0);
        const void *there = nereid_kv_view(kv, &places[i]);
        CHECK(there != NULL && memcmp(there, data, kBytes) == 0);
        CHECK(nereid_kv_valid(kv, &places[i]) == 0);
    }
    CHECK(nereid_kv_submit_subscribe(kv, 0, 100, 0, &tag) == 0);
    c = wait_for(tag);
    CHECK(c.event_count >= kCount && c.events[0].type == 0);
    CHECK(nereid_kv_submit_release(kv, lease, &tag) == 0);
    wait_for(tag);
    free(out);
}

int main(int argc, char **argv) {
    nereid_kv_object objects[kCount];
    unsigned char *data = malloc(kBytes);
    uint64_t tag;
    uint32_t ns;
    const char *mode = argc > 2 ? argv[2] : "";
    if (argc < 2) return 2;
    CHECK(nereid_kv_abi() == NEREID_KV_ABI);
    CHECK(nereid_kv_connect(argv[1], "c-test", 4 << 20, 10000, &kv) == 0);
    ns = open_namespace();
    for (uint32_t i = 0; i < kCount; ++i) {
        memset(&objects[i], 0, sizeof objects[i]);
        memset(objects[i].key.bytes, (int)(i + 100), 16);
        objects[i].block = i;
    }
    round_trip(ns, objects, data);
    if (strcmp(mode, "fork") == 0) {
        int status;
        const pid_t child = fork();
        if (child == 0) {
            uint64_t t;
            const int r = nereid_kv_submit_stats(kv, 0, &t);
            nereid_kv_close(kv); /* must not end the parent's connection */
            _exit(r == NEREID_KV_FORKED ? 0 : 1);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        round_trip(ns, objects, data);
    } else if (strcmp(mode, "kill") == 0) {
        nereid_kv_object missing = objects[0];
        CHECK(nereid_kv_submit_get(kv, ns, objects, kCount, 60000, 0, 0, &tag) == 0);
        wait_for(tag);
        memset(missing.key.bytes, 1, 16);
        CHECK(nereid_kv_submit_reserve(kv, ns, &missing, 1, 60000, 0, 0, &tag) == 0);
        wait_for(tag);
        CHECK(nereid_kv_submit_get(kv, ns, &missing, 1, 60000, 30000, NEREID_KV_JOIN_WRITES, &tag) == 0);
        puts("holding");
        fflush(stdout);
        raise(SIGKILL);
    }
    nereid_kv_close(kv);
    free(data);
    puts("ok");
    return 0;
}

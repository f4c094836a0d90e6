// Costs of what every request pays: JSON both ways, hashes, UTF-8.
#include <benchmark/benchmark.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/prng.h"
#include "base/utf8.h"

namespace nereid {
namespace {

void count_bytes(benchmark::State& state, std::size_t each) {
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(each));
}

// A chat request of some 3 kB with a tool, as agents send them.
std::string chat_body() {
    Json::Array messages;
    for (int i = 0; i < 8; ++i) {
        Json message;
        message.set("role", i % 2 == 0 ? "user" : "assistant");
        message.set("content", std::string(300, 'a') + "\n\"quoted\" caf\xc3\xa9");
        messages.push_back(std::move(message));
    }
    Json body;
    body.set("model", "m")
        .set("messages", std::move(messages))
        .set("temperature", 0.7)
        .set("stream", true);
    return body.dump();
}

void json_parse(benchmark::State& state) {
    const std::string body = chat_body();
    for (auto _ : state) benchmark::DoNotOptimize(Json::parse(body));
    count_bytes(state, body.size());
}
BENCHMARK(json_parse);

void json_dump(benchmark::State& state) {
    const Json tree = *Json::parse(chat_body());
    for (auto _ : state) benchmark::DoNotOptimize(tree.dump());
    count_bytes(state, tree.dump().size());
}
BENCHMARK(json_dump);

// One streamed chunk of Chat Completions.
void json_write_chunk(benchmark::State& state) {
    std::string out;
    for (auto _ : state) {
        out.clear();
        JsonWriter w(out);
        w.begin_object()
            .member("id", "chatcmpl-0123456789abcdef")
            .member("object", "chat.completion.chunk");
        w.member("created", std::int64_t{1'796'000'000})
            .member("model", "smollm2")
            .key("choices")
            .begin_array();
        w.begin_object()
            .member("index", 0)
            .key("delta")
            .begin_object()
            .member("content", " hello")
            .end_object();
        w.key("finish_reason").null().end_object().end_array().end_object();
        benchmark::DoNotOptimize(out.data());
    }
}
BENCHMARK(json_write_chunk);

void json_string_64k(benchmark::State& state) {
    const std::string text(65536, 'x');
    std::string out;
    for (auto _ : state) {
        out.clear();
        append_json_string(out, text);
        benchmark::DoNotOptimize(out.data());
    }
    count_bytes(state, text.size());
}
BENCHMARK(json_string_64k);

void hmac_284_bytes(benchmark::State& state) {
    const std::string key(32, 'k');
    const std::string data(284, 'd');
    HmacSha256 mac(as_bytes(key));
    for (auto _ : state) benchmark::DoNotOptimize(mac.update(as_bytes(data)).finish());
}
BENCHMARK(hmac_284_bytes);

void hmac_with_a_new_key(benchmark::State& state) {
    const std::string key(32, 'k');
    const std::string data(284, 'd');
    for (auto _ : state) benchmark::DoNotOptimize(hmac_sha256(as_bytes(key), as_bytes(data)));
}
BENCHMARK(hmac_with_a_new_key);

void sha256_1m(benchmark::State& state) {
    const std::string data(1 << 20, 'd');
    for (auto _ : state) benchmark::DoNotOptimize(sha256(as_bytes(data)));
    count_bytes(state, data.size());
}
BENCHMARK(sha256_1m);

void crc32c_64k(benchmark::State& state) {
    const std::string data(65536, 'd');
    const bool portable = state.range(0) != 0;
    for (auto _ : state) {
        benchmark::DoNotOptimize(portable ? crc32c_portable(as_bytes(data))
                                          : crc32c(as_bytes(data)));
    }
    count_bytes(state, data.size());
}
BENCHMARK(crc32c_64k)->ArgName("portable")->Arg(0)->Arg(1);

void keyed_draw(benchmark::State& state) {
    std::uint64_t position = 0;
    for (auto _ : state) benchmark::DoNotOptimize(keyed_uniform(7, ++position));
}
BENCHMARK(keyed_draw);

void utf8_ascii_64k(benchmark::State& state) {
    const std::string text(65536, 'x');
    for (auto _ : state) benchmark::DoNotOptimize(is_valid_utf8(text));
    count_bytes(state, text.size());
}
BENCHMARK(utf8_ascii_64k);

}  // namespace
}  // namespace nereid

// The hot paths of a stream: one text chunk out (StreamEncoder), one chunk in (StreamReader), a
// request in. Targets: <= 1.5 us out, <= 2 us in, per chunk of about 150 bytes.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "dialect/chat/chat.h"
#include "dialect/chat/mirror.h"

namespace nereid::dialect::chat {
namespace {

ResponseMeta meta() {
    return {.id = "chatcmpl-0123456789abcdef",
            .model = "SmolLM2-135M-Instruct",
            .created = 1700000000,
            .system_fingerprint = {},
            .include_usage = true};
}

void encode_text_chunk(benchmark::State& state) {
    StreamEncoder encoder(meta());
    std::string out;
    encoder.on(model::TextDelta{.choice = 0, .text = "x"}, out);
    const model::Event event =
        model::TextDelta{.choice = 0, .text = " token", .logprobs = {}, .tokens = 1};
    for (auto _ : state) {
        out.clear();
        encoder.on(event, out);
        benchmark::DoNotOptimize(out.data());
    }
    state.counters["bytes"] = static_cast<double>(out.size());
}
BENCHMARK(encode_text_chunk);

std::string sixteen_chunks(bool new_ids) {
    std::string stream;
    for (int i = 0; i < 16; ++i) {
        stream +=
            "data: {\"id\":\"chatcmpl-" + std::to_string(new_ids ? i : 0) +
            R"(","object":"chat.completion.chunk","created":1700000000,"model":"mock","choices":[{"index":0,"delta":{"content":"tok)" +
            std::to_string(i) + R"( "},"finish_reason":null}]})" + "\n\n";
    }
    return stream +
           R"(data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})" +
           "\n\ndata: [DONE]\n\n";
}

void read_sixteen_chunks(benchmark::State& state, bool new_ids) {
    const std::string stream = sixteen_chunks(new_ids);
    for (auto _ : state) {
        StreamReader reader;
        std::vector<model::Event> events;
        for (std::size_t at = 0; at < stream.size();) {  // one read per frame
            const std::size_t end = stream.find("\n\n", at) + 2;
            reader.feed(std::string_view(stream).substr(at, end - at), events);
            at = end;
        }
        benchmark::DoNotOptimize(events.data());
    }
    state.SetItemsProcessed(state.iterations() * 18);
}
BENCHMARK_CAPTURE(read_sixteen_chunks, alike, false);
BENCHMARK_CAPTURE(read_sixteen_chunks, parsed, true);

void forward_sixteen_chunks(benchmark::State& state) {
    const std::string stream = sixteen_chunks(false);
    std::string out;
    for (auto _ : state) {
        StreamReader reader;
        StreamEncoder encoder(meta());
        std::vector<model::Event> events;
        out.clear();
        for (std::size_t at = 0; at < stream.size();) {
            const std::size_t end = stream.find("\n\n", at) + 2;
            events.clear();
            reader.feed(std::string_view(stream).substr(at, end - at), events);
            for (const model::Event& event : events) encoder.on(event, out);
            at = end;
        }
        benchmark::DoNotOptimize(out.data());
    }
}
BENCHMARK(forward_sixteen_chunks);

void parse_and_write_request(benchmark::State& state) {
    const std::string body =
        R"({"model":"mock","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"Hello, how are you today?"}],"temperature":0.7,"max_tokens":64,"stream":true})";
    for (auto _ : state) {
        const auto request = parse_chat(*Json::parse(body));
        const auto written = write_request(*request, "mock");
        benchmark::DoNotOptimize(written->body.data());
    }
}
BENCHMARK(parse_and_write_request);

}  // namespace
}  // namespace nereid::dialect::chat

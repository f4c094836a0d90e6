// Opening, encoding and rendering with the small test model. Encoding is libllama's; CPU time
// at 2.1 GHz: English 3 MB/s, letters or Chinese 1.3 to 2 MB/s, one run of blanks 0.6 MB/s, all
// linear. A template costs about 0.1 ms per message.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "text/gguf/test_model.h"

namespace nereid::text {
namespace {

void open_model(benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(open_gguf_text(test_model_path()).ok());
}
BENCHMARK(open_model)->Unit(benchmark::kMillisecond);

void encode_text(benchmark::State& state, std::string unit) {
    std::string text;
    while (text.size() < static_cast<std::size_t>(state.range(0))) text += unit;
    std::vector<TokenId> ids;
    for (auto _ : state) {
        ids.clear();
        test_model().tokenizer->encode(text, Special::kPlain, ids);
    }
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
    state.counters["tokens"] = static_cast<double>(ids.size());
}
BENCHMARK_CAPTURE(encode_text, english,
                  "The quick brown fox jumps over the lazy dog, and it's 42 degrees.\n")
    ->Arg(2000)
    ->Arg(200'000);
BENCHMARK_CAPTURE(encode_text, letters, "a")->Arg(20'000)->Arg(200'000);
BENCHMARK_CAPTURE(encode_text, blanks, " ")->Arg(20'000)->Arg(200'000);
BENCHMARK_CAPTURE(encode_text, chinese, "\xe4\xbd\xa0\xe5\xa5\xbd")->Arg(20'000)->Arg(200'000);

void render_conversation(benchmark::State& state) {
    model::Request request;
    for (int i = 0; i < state.range(0); ++i) {
        model::Message message{.role = i % 2 == 0 ? model::Role::kUser : model::Role::kAssistant,
                               .parts = {}};
        std::string text = std::to_string(i);
        while (text.size() < 400) text += " The quick brown fox jumps over the lazy dog.";
        message.parts.emplace_back(model::TextPart{std::move(text)});
        request.messages.push_back(std::move(message));
    }
    for (auto _ : state) {
        const auto prompt = test_model().chat_template->render(request);
        state.counters["tokens"] = static_cast<double>(prompt->tokens.size());
    }
}
BENCHMARK(render_conversation)->Arg(1)->Arg(10)->Arg(100)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace nereid::text

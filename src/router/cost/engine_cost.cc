#include "router/cost/engine_cost.h"

#include <cmath>
#include <string>

namespace nereid::router {
namespace {

Result<double> number(const Json& part, const char* name, bool positive) {
    const Json* value = part.is_object() ? part.find(name) : nullptr;
    const double read = value != nullptr && value->is_number() ? value->as_double() : -1;
    if (std::isfinite(read) && (positive ? read > 0 : read >= 0)) return read;
    return err(Code::kInvalidArgument,
               std::string("the engine's cost model: ") + name + " is no positive number");
}

}  // namespace

Result<CostModel> cost_of_engine(const Json& source, double tflops, const CostModel& base) {
    CostModel out = base;
    const Json* model = source.is_object() ? source.find("model") : nullptr;
    if (model == nullptr || !model->is_object())
        return err(Code::kInvalidArgument, "the engine's cost model: `model` is missing");
    if (const Json* prefill = model->find("prefill"); prefill != nullptr && !prefill->is_null()) {
        TRY(const double token, number(*prefill, "per_token_flops", true));
        TRY(const double pair, number(*prefill, "per_token_context_flops", false));
        const double flops_per_ms = tflops > 0 ? tflops * 1e9 : token / base.prefill.per_token_ms;
        out.prefill.per_token_ms = token / flops_per_ms;
        out.prefill.per_token_context_ms = pair / flops_per_ms;
    }
    if (const Json* decode = model->find("decode"); decode != nullptr && !decode->is_null()) {
        TRY(out.decode.fixed_ms, number(*decode, "fixed_ms", false));
        TRY(out.decode.per_request_ms, number(*decode, "per_request_ms", true));
    }
    return out;
}

}  // namespace nereid::router

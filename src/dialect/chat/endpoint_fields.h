// The names and policies of the fields that each endpoint knows, for the documentation's test.
#pragma once

#include <vector>

#include "dialect/field_table.h"

namespace nereid::dialect::chat {

std::vector<FieldPolicy> chat_fields();
std::vector<FieldPolicy> completion_fields();
std::vector<FieldPolicy> embedding_fields();

}  // namespace nereid::dialect::chat

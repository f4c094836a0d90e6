// The images and documents of a chat, in the order in which they stand in it. Walks over all parts;
// allocates only where there are some.
#pragma once

#include <variant>
#include <vector>

#include "model/request.h"

namespace nereid::model {

template <class Kind>
std::vector<const Kind*> collect_parts(const Request& request) {
    std::vector<const Kind*> out;
    for (const Message& message : request.messages) {
        for (const Part& part : message.parts) {
            if (const auto* found = std::get_if<Kind>(&part)) out.push_back(found);
        }
    }
    return out;
}

inline std::vector<const ImagePart*> images_of(const Request& request) {
    return collect_parts<ImagePart>(request);
}
inline std::vector<const DocumentPart*> documents_of(const Request& request) {
    return collect_parts<DocumentPart>(request);
}

}  // namespace nereid::model

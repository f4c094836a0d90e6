// The images and documents of a chat, in the order in which they stand in it. Walks over all parts;
// allocates only where there are some.
#pragma once

#include <variant>
#include <vector>

#include "model/request.h"

namespace nereid::model {

template <class Kind, class Chat>
auto collect_parts(Chat& request) {
    std::vector<decltype(std::get_if<Kind>(&request.messages[0].parts[0]))> out;
    for (auto& message : request.messages) {
        for (auto& part : message.parts) {
            if (auto* found = std::get_if<Kind>(&part)) out.push_back(found);
        }
    }
    return out;
}

inline std::vector<ImagePart*> images_of(Request& request) {
    return collect_parts<ImagePart>(request);
}
inline std::vector<const ImagePart*> images_of(const Request& request) {
    return collect_parts<ImagePart>(request);
}
inline std::vector<const DocumentPart*> documents_of(const Request& request) {
    return collect_parts<DocumentPart>(request);
}

}  // namespace nereid::model

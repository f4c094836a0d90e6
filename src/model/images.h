// The images of a chat, in the order in which they stand in it. Walks over all parts; allocates
// only where there are images.
#pragma once

#include <variant>
#include <vector>

#include "model/request.h"

namespace nereid::model {

template <class Image, class Chat>
std::vector<Image*> collect_images(Chat& request) {
    std::vector<Image*> out;
    for (auto& message : request.messages) {
        for (auto& part : message.parts) {
            if (auto* image = std::get_if<ImagePart>(&part)) out.push_back(image);
        }
    }
    return out;
}

inline std::vector<ImagePart*> images_of(Request& request) {
    return collect_images<ImagePart>(request);
}
inline std::vector<const ImagePart*> images_of(const Request& request) {
    return collect_images<const ImagePart>(request);
}

}  // namespace nereid::model

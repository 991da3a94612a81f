#include "raycast/transfer.hpp"

namespace workload {

namespace {

struct Knot {
    float value;
    Vec3 colour;
    float opacity_per_mm;
};

// Fluid up to 98 or so, grey matter 150 to 190, white matter 200 to 235.
constexpr Knot knots[] = {
    {TransferFunction::visible_above, {0.50f, 0.22f, 0.22f}, 0.0f},
    {125, {0.70f, 0.40f, 0.37f}, 0.10f},
    {150, {0.80f, 0.53f, 0.48f}, 0.55f},
    {178, {0.82f, 0.58f, 0.53f}, 0.80f},
    {196, {0.90f, 0.76f, 0.67f}, 0.85f},
    {214, {0.98f, 0.94f, 0.84f}, 0.90f},
    {256, {1.00f, 0.98f, 0.92f}, 0.95f},
};

Knot between(const Knot& a, const Knot& b, float value) {
    const float part = (value - a.value) / (b.value - a.value);
    return {value, a.colour + (b.colour - a.colour) * part,
            a.opacity_per_mm + (b.opacity_per_mm - a.opacity_per_mm) * part};
}

Knot at(float value) {
    const Knot* upper = knots + 1;
    while (upper->value < value) {
        ++upper;
    }
    return between(upper[-1], *upper, value);
}

}  // namespace

TransferFunction::TransferFunction(float step_mm) {
    for (std::size_t i = 0; i < table_.size(); ++i) {
        const float value = static_cast<float>(i) / resolution;
        if (value > visible_above) {
            const Knot knot = at(value);
            table_[i] = {knot.colour, 1 - std::pow(1 - knot.opacity_per_mm, step_mm)};
        }
    }
}

}  // namespace workload

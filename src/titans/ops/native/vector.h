// Vectors of T by the extension that GCC and Clang share, and the activations on them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace titans {

#ifdef __AVX512F__
constexpr int VECTOR_BYTES = 64;
#else
constexpr int VECTOR_BYTES = 32;  // two registers where the machine's are 16 bytes wide
#endif

template <class T> struct Vectors;
template <> struct Vectors<float> {
    typedef float V __attribute__((vector_size(VECTOR_BYTES)));
    typedef int32_t I __attribute__((vector_size(VECTOR_BYTES)));
};
template <> struct Vectors<double> {
    typedef double V __attribute__((vector_size(VECTOR_BYTES)));
    typedef int64_t I __attribute__((vector_size(VECTOR_BYTES)));
};
template <class T> using Vec = typename Vectors<T>::V;
template <class T> constexpr int LANES = VECTOR_BYTES / sizeof(T);

template <class T> inline Vec<T> load(const T* p) {
    Vec<T> v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

template <class T> inline void store(T* p, Vec<T> v) { std::memcpy(p, &v, sizeof v); }

template <class T> inline T sum(Vec<T> v) {
    T total = 0;
    for (int i = 0; i < LANES<T>; ++i) total += v[i];
    return total;
}

// The number in every lane. (Adding it to 0 is not the same: -0 would not survive, so a compiler must not drop the sum.)
template <class T> inline Vec<T> all(T x) {
    Vec<T> v;
    for (int i = 0; i < LANES<T>; ++i) v[i] = x;
    return v;
}

// Lanes of a, and counted on from there of b.
template <class T> inline Vec<T> pick(Vec<T> a, Vec<T> b, typename Vectors<T>::I index) {
#ifdef __clang__  // has no such builtin, and needs none
    Vec<T> v;
    for (int i = 0; i < LANES<T>; ++i) v[i] = index[i] < LANES<T> ? a[index[i]] : b[index[i] - LANES<T>];
    return v;
#else
    return __builtin_shuffle(a, b, index);
#endif
}

// e^x for x <= 0, to 2 ulp: below the smallest normal number it is 0.
inline Vec<float> exp_negative(Vec<float> x) {
    typedef Vectors<float>::I I;
    const Vec<float> shift = all(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
    I tiny = x < -87.f;
    x = tiny ? all(-87.f) : x;
    Vec<float> n = x * 1.44269504f + shift;
    I exponent;
    std::memcpy(&exponent, &n, sizeof n);
    n -= shift;
    Vec<float> r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Vec<float> p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    exponent = (exponent << 23) + 0x3f800000;
    std::memcpy(&n, &exponent, sizeof n);
    return tiny ? Vec<float>{} : p * n;
}

inline Vec<double> exp_negative(Vec<double> x) {
    for (int i = 0; i < LANES<double>; ++i) x[i] = std::exp(x[i]);
    return x;
}

// Probability that a standard normal variable is above x >= 0, given e = exp(-x^2 / 2).
inline Vec<float> normal_tail(Vec<float> x, Vec<float> e) {
    // A polynomial in 1 / (1 + 0.3 x / sqrt(2)), fitted to 5e-8 relative for all x whose e is not 0.
    Vec<float> t = 1.f / (x * 0.212132034f + 1.f);
    Vec<float> p = all(-0.0647171438f);
    p = p * t + 0.242548734f;
    p = p * t - 0.255614251f;
    p = p * t + 0.273198694f;
    p = p * t - 0.0468164161f;
    p = p * t + 0.107218467f;
    p = p * t + 0.074241139f;
    p = p * t + 0.0853459761f;
    p = p * t + 0.0845948085f;
    return p * t * e;
}

inline Vec<double> normal_tail(Vec<double> x, Vec<double>) {
    for (int i = 0; i < LANES<double>; ++i) x[i] = 0.5 * std::erfc(x[i] * M_SQRT1_2);
    return x;
}

enum Activation { GELU, SILU, RELU };

// An activation's value and first two derivatives; what the caller does not use costs nothing.
template <class T> struct Bend {
    Vec<T> value, slope, curve;
};

template <class T, Activation kind> inline Bend<T> bend(Vec<T> x) {
    const Vec<T> zero = {}, one = all(T(1));
    const Vec<T> size = x < zero ? -x : x;
    if (kind == GELU) {
        const Vec<T> e = exp_negative(size * size * T(-0.5)), tail = normal_tail(size, e);
        const Vec<T> below = x < zero ? tail : one - tail, density = e * T(0.398942280401432678);
        return {x * below, below + x * density, density * (T(2) - x * x)};
    }
    if (kind == SILU) {
        const Vec<T> e = exp_negative(-size), s = (x < zero ? e : one) / (one + e);
        return {x * s, s * (one + x * (one - s)), s * (one - s) * (T(2) + x * (one - T(2) * s))};
    }
    return {x < zero ? zero : x, x > zero ? one : zero, zero};
}

// Call `f` with the activation as a compile-time constant.
template <class F> inline void with_activation(int kind, F f) {
    if (kind == GELU) f(std::integral_constant<Activation, GELU>{});
    else if (kind == SILU) f(std::integral_constant<Activation, SILU>{});
    else f(std::integral_constant<Activation, RELU>{});
}

}  // namespace titans

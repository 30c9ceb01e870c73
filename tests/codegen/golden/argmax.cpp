static void argmax(int64_t* p0, const float* p1, const int threads, Error* error) {
  for (int32_t x0 = 0; x0 < 64; ++x0) {
    float acc1 = -__builtin_inff();
    int32_t n2 = 0;
    #pragma omp simd reduction(max:acc1) reduction(|:n2)
    for (int32_t x1 = 0; x1 < 512; ++x1) {
      const float v3 = p1[(x1 + 512*x0)];
      acc1 = v3 > acc1 ? v3 : acc1;
      n2 |= v3 != v3;
    }
    const float r4 = n2 ? (float)__builtin_nan("") : acc1;
    int32_t acc5 = 2147483647;
    const bool v10 = r4 != r4;
    #pragma omp simd reduction(min:acc5)
    for (int32_t x1 = 0; x1 < 512; ++x1) {
      const float v7 = p1[(x1 + 512*x0)];
      const bool v8 = v7 == r4;
      const bool v9 = v7 != v7;
      const bool v11 = v9 & v10;
      const bool v12 = v8 | v11;
      const int32_t v13 = (int32_t)x1;
      const int32_t v14 = v12 ? v13 : 2147483647;
      acc5 = v14 < acc5 ? v14 : acc5;
    }
    const int32_t r15 = acc5;
    const int64_t v16 = (int64_t)r15;
    p0[x0] = v16;
  }
}

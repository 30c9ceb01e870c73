static void softmax(float* p0, const float* p1, const int threads, Error* error) {
  #pragma omp parallel for schedule(static) num_threads(threads) if(threads > 1)
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
    float acc5 = 0.0f;
    float row10[512];
    #pragma omp simd reduction(+:acc5)
    for (int32_t x1 = 0; x1 < 512; ++x1) {
      const float v7 = p1[(x1 + 512*x0)];
      const float v8 = v7 - r4;
      const float v9 = exp_f32(v8);
      row10[x1] = v9;
      acc5 += v9;
    }
    const float r11 = acc5;
    #pragma omp simd
    for (int32_t x1 = 0; x1 < 512; ++x1) {
      const float v12 = row10[x1] / r11;
      p0[(x1 + 512*x0)] = v12;
    }
  }
}

static void layer_norm(float* p0, const float* p1, const int threads, Error* error) {
  #pragma omp parallel for schedule(static) num_threads(threads) if(threads > 1)
  for (int32_t x0 = 0; x0 < 64; ++x0) {
    float acc1 = 0.0f;
    #pragma omp simd reduction(+:acc1)
    for (int32_t x1 = 0; x1 < 512; ++x1) {
      const float v3 = p1[(x1 + 512*x0)];
      acc1 += v3;
    }
    const float r4 = acc1;
    float acc5 = 0.0f;
    const float v8 = r4 / 512.0f;
    #pragma omp simd reduction(+:acc5)
    for (int32_t x1 = 0; x1 < 512; ++x1) {
      const float v7 = p1[(x1 + 512*x0)];
      const float v9 = v7 - v8;
      const float v10 = v9 * v9;
      acc5 += v10;
    }
    const float r11 = acc5;
    const float v14 = r11 / 512.0f;
    const float v15 = v14 + 0x1.4f8b588e368f1p-17f;
    const float v16 = 1 / __builtin_sqrtf(v15);
    #pragma omp simd
    for (int32_t x1 = 0; x1 < 512; ++x1) {
      const float v12 = p1[(x1 + 512*x0)];
      const float v13 = v12 - v8;
      const float v17 = v13 * v16;
      p0[(x1 + 512*x0)] = v17;
    }
  }
}

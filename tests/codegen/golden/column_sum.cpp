static void column_sum(float* p0, const float* p1, const int threads, Error* error) {
  for (int32_t x0_0 = 0; x0_0 < 512; x0_0 += 64) {
    const int32_t x0_1 = x0_0 + 64;
    float acc1[64];
    for (int l = 0; l < 64; ++l) acc1[l] = 0.0f;
    for (int32_t x1 = 0; x1 < 64; ++x1) {
      #pragma omp simd
      for (int32_t x0 = x0_0; x0 < x0_1; ++x0) {
        const float v3 = p1[(x0 + 512*x1)];
        acc1[x0 - x0_0] += v3;
      }
    }
    #pragma omp simd
    for (int32_t x0 = x0_0; x0 < x0_1; ++x0) {
      p0[x0] = (acc1[x0 - x0_0]);
    }
  }
}

static void transpose(float* p0, const float* p1, const int threads, Error* error) {
  for (int32_t x0_0 = 0; x0_0 < 512; x0_0 += 64) {
    for (int32_t x1_0 = 0; x1_0 < 64; x1_0 += 64) {
      const int32_t x0_1 = x0_0 + 64;
      const int32_t x1_1 = x1_0 + 64;
      float tile1[4096] __attribute__((aligned(64)));
      lines_to_tile_4(p1 + (x0_0 + 512*x1_0), 512, tile1, 64, x1_1 - x1_0, x0_1 - x0_0);
      for (int32_t x0 = x0_0; x0 < x0_1; ++x0) {
        #pragma omp simd
        for (int32_t x1 = x1_0; x1 < x1_1; ++x1) {
          const float v2 = tile1[(x0 - x0_0) * 64 + (x1 - x1_0)];
          p0[(x1 + 64*x0)] = v2;
        }
      }
    }
  }
}

static void gelu(float* p0, const float* p1, const int threads, Error* error) {
  #pragma omp parallel for schedule(static) num_threads(threads) if(threads > 1)
  for (int32_t x0_0 = 0; x0_0 < 100000; x0_0 += 1600) {
    const int32_t x0_1 = x0_0 + 1600 < 100000 ? x0_0 + 1600 : 100000;
    #pragma omp simd
    for (int32_t x0 = x0_0; x0 < x0_1; ++x0) {
      const float v1 = p1[x0];
      const float v2 = gelu_f32(v1);
      p0[x0] = v2;
    }
  }
}

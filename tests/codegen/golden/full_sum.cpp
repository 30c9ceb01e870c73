static void full_sum(float* p0, const float* p1, const int threads, Error* error) {
  double acc1 = 0.0f;
  #pragma omp simd reduction(+:acc1)
  for (int32_t x0 = 0; x0 < 100000; ++x0) {
    const float v3 = p1[x0];
    acc1 += (double)v3;
  }
  const float r4 = (float)acc1;
  p0[0] = r4;
}

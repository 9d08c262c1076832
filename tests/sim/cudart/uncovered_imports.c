/* A library that imports one CUDA runtime function that exists and one that does not. */
int cudaMalloc(void);
int cudaNoSuchThing(void);
int spillway_uncovered(void);
int spillway_uncovered(void) {
  return cudaMalloc() + cudaNoSuchThing();
}

#include "handles.h"

CREATES(cusolverDnCreate)
SUCCEEDS(cusolverDnDestroy)
SUCCEEDS(cusolverDnSetStream)

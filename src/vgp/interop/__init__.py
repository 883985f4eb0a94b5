"""The variational Gaussian process inside other libraries."""

//! Work on a GPU for `gpufrac prove`: through CUDA's driver API in a child process ([`client`]), in the control group
//! of a job ([`group`]), under load ([`load`]), and with a control daemon of MPS ([`mps`]).
//!
//! The driver's library is loaded at run time; its program for the GPU is text that the driver compiles. So neither a
//! toolkit nor a compiler is needed. A process that called CUDA once keeps its devices and may hang with the GPU, so
//! the calling process makes no call itself.
//!
//! Nothing here was tried on a GPU: the tests use a stand-in for the library (`tests/cuda-standin`).

pub mod client;
mod cuda;
pub mod group;
pub mod load;
pub mod mps;
pub mod order;
mod worker;

pub use worker::serve;

//! What gpufrac does as root on a node.

//! SPANK plugin of gpufrac.

//! Pure logic of gpufrac: fractions, geometry, layouts, pools, leases.

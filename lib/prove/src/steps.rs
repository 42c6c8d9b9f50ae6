//! The steps, in their order.

mod again;
mod errors;
mod fence;
mod files;
mod geometry;
pub mod in_use;
mod load;
mod mode;
mod mps;
mod orders;
mod places;
mod sessions;
mod times;

use crate::driver::Stop;
use crate::work::Work;

/// A step: its name, and what it does on a GPU in MIG mode without instances.
pub type Step = (&'static str, fn(&Work<'_, '_>) -> Result<(), Stop>);

/// The steps that need MIG.
pub const STEPS: &[Step] = &[
    ("geometry", geometry::geometry),
    ("layouts", geometry::layouts),
    ("places", places::places),
    ("again", again::again),
    ("orders", orders::orders),
    ("times", times::times),
    ("files", files::files),
    ("errors", errors::errors),
    ("sessions", sessions::sessions),
    ("in use", in_use::in_use),
    ("load", load::load),
];

/// The step that changes MIG mode.
pub use mode::{mode, switch};
/// The step with control daemons of MPS.
pub use mps::mps;
/// The step for a GPU without MIG mode.
pub use times::without_mig;

//! What every transport is tested with.

//! Protection domains.

use std::sync::Arc;

use crate::memory::PdId;

use super::context::Context;
use super::error::VerbsError;

/// A protection domain: queue pairs write only to memory of their own domain.
///
/// Clones are handles to the same domain; it ends with the last of them and of what was made from them.
#[derive(Clone, Debug)]
pub struct Pd {
    shared: Arc<PdShared>,
}

#[derive(Debug)]
struct PdShared {
    context: Context,
    id: PdId,
}

impl Context {
    /// A new protection domain.
    ///
    /// # Errors
    /// [`VerbsError::Control`] if the lane has failed.
    pub fn create_pd(&self) -> Result<Pd, VerbsError> {
        self.check_alive()?;
        let id = self.memory().alloc_pd();
        Ok(Pd { shared: Arc::new(PdShared { context: self.clone(), id }) })
    }
}

impl Pd {
    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    pub(super) fn id(&self) -> PdId {
        self.shared.id
    }
}

impl Drop for PdShared {
    fn drop(&mut self) {
        // All that could keep it busy holds a handle to it, and is gone; memory that still drains keeps
        // the endpoint's own entry until then.
        let id = self.id;
        self.context.control_deferred(0, move |lane| {
            let _ = lane.endpoint_mut().dealloc_pd(id);
        });
    }
}

//! Protection domains.

use std::sync::Arc;

use crate::memory::PdId;

use super::context::Context;
use super::error::VerbsError;

/// A protection domain: queue pairs write only to memory of their own domain.
///
/// Clones are handles to the same domain. It ends when they and everything made from them have been dropped.
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
    /// Makes a protection domain.
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
        // Everything that could keep the domain busy holds a handle to it, and has been dropped. Memory that is still
        // in use keeps the endpoint's own entry until its requests are done.
        let id = self.id;
        self.context.control_deferred(0, move |lane| {
            let _ = lane.endpoint_mut().dealloc_pd(id);
        });
    }
}

//! Errors of control calls.

/// A control call could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// This thread is within another call of the same context, so the call would wait for itself.
    #[error(
        "control call inside another control call of the same context (such as `Context::with_endpoint`); make it after that one has returned"
    )]
    Nested,
    /// The process was forked from the one that opened the context. Only that one can use it.
    #[error(
        "the context was opened before this process was forked, and works in its parent only; open another one"
    )]
    Forked,
    /// The lane has panicked and is stopped.
    #[error("a lane of the context has failed, and the context does no more work; open another one ({0})")]
    LaneFailed(String),
}

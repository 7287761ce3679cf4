//! The counters of processes over HTTP: `/metrics` for Prometheus. A benchmark, `spindrift run` and an agent serve them.
//!
//! All come from the control sockets of the processes, and are read when somebody asks: [`spindrift_control::Watch`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use spindrift_control::{Seen, Watch, prometheus};
use tokio::sync::Mutex;

use crate::serve::{HttpError, Listening, Serving, error};
use crate::token::Token;

/// For how long counters stay as they were read, so that many who ask cost the processes no more than one.
const FRESH: Duration = Duration::from_millis(250);

/// Processes, and what they replied last.
#[derive(Debug)]
pub(crate) struct Processes {
    watch: Arc<Watch>,
    last: Mutex<Option<(Instant, Arc<Seen>)>>,
}

impl Processes {
    pub(crate) fn new(watch: Watch) -> Self {
        Self { watch: Arc::new(watch), last: Mutex::default() }
    }

    /// Their counters. Whoever asks while they are read gets the same.
    pub(crate) async fn look(&self) -> Arc<Seen> {
        let mut last = self.last.lock().await;
        if let Some((at, seen)) = &*last
            && at.elapsed() < FRESH
        {
            return Arc::clone(seen);
        }
        let watch = Arc::clone(&self.watch);
        let looked = tokio::task::spawn_blocking(move || watch.look()).await;
        let failed = |_| Seen { errors: vec!["the processes cannot be asked".to_owned()], ..Seen::default() };
        let seen = Arc::new(looked.unwrap_or_else(failed));
        *last = Some((Instant::now(), Arc::clone(&seen)));
        seen
    }

    /// The answer of `/api/v1/processes`.
    pub(crate) async fn json(&self) -> Response {
        Json(&*self.look().await).into_response()
    }

    /// The answer of `/metrics`.
    pub(crate) async fn metrics(&self) -> Response {
        let text = prometheus::text(&*self.look().await);
        ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
    }
}

/// Serves counters until it is dropped.
#[derive(Debug)]
pub struct Exporter(Serving);

impl Exporter {
    /// Listens on a loopback address, or on another one with a token, which the user names by `option`.
    ///
    /// # Errors
    /// [`HttpError`].
    pub fn start(
        address: SocketAddr,
        watch: Watch,
        token: Option<Token>,
        option: &'static str,
    ) -> Result<Self, HttpError> {
        let listening = Listening::new(address, token, option)?;
        let missing =
            || async { error(StatusCode::NOT_FOUND, "there is no such page; /metrics has the metrics") };
        let router = Router::new()
            .route("/metrics", get(|State(of): State<Arc<Processes>>| async move { of.metrics().await }))
            .fallback(missing)
            .with_state(Arc::new(Processes::new(watch)));
        listening.serve(router, std::future::pending()).map(Self)
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

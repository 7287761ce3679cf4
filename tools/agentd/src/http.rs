//! The HTTP interface of an agent. It only shows. Whoever can reach it sees the whole fabric, so it listens on loopback addresses, and on
//! others with a [`Token`] alone.
//!
//! | Path | What |
//! |---|---|
//! | `/` | the web page |
//! | `/api/v1/status` | a [`Snapshot`], as JSON |
//! | `/api/v1/summary` | the part of it that is no list of links, with the number of links of each level |
//! | `/api/v1/fabric` | a [`Layout`](crate::layout::Layout): the names of hosts, and the order of links |
//! | `/api/v1/links` | the level of each link: a [`Frame`](crate::history::Frame), in binary form |
//! | `/api/v1/history` | the frames that are kept of the last hours, and the faults |
//! | `/api/v1/history/ID` | such a frame |
//! | `/api/v1/link/A:B` | what all agents together know of a link, and its history |
//! | `/api/v1/openapi.json` | the schema of all of these |
//! | `/api/v1/processes` | the [counters](spindrift_control::Seen) of the processes of this host |
//! | `/metrics` | [metrics] for Prometheus |
//! | `/metrics/transport` | the counters of the processes, for Prometheus |
//!
//! With a token, each request but those for the files of the page has to show it, so that other users of the machine learn nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use tokio::time::{MissedTickBehavior, interval_at};

use crate::api::App;
use crate::history::STEP;
use crate::published::Source;
use crate::serve::{Listening, Serving, error};
use crate::snapshot::Snapshot;
use crate::token::Token;
use crate::{metrics, page};

pub use crate::serve::HttpError;

/// Serves until it is dropped.
#[derive(Debug)]
pub struct Server(Serving);

fn binary(bytes: Vec<u8>) -> Response {
    ([(CONTENT_TYPE, "application/octet-stream")], bytes).into_response()
}

async fn past_frame(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    let frame = id.parse().ok().and_then(|id| app.frame(id));
    frame.map_or_else(
        || {
            error(
                StatusCode::NOT_FOUND,
                &format!("{id}: no such frame; /api/v1/history lists those that are kept"),
            )
        },
        binary,
    )
}

async fn link(State(app): State<Arc<App>>, Path(name): Path<String>) -> Response {
    app.link(&name).map_or_else(
        || {
            let why = format!("{name}: no such link; write its two ends, as in p0-t0-0:p0-t1-0");
            error(StatusCode::NOT_FOUND, &why)
        },
        |link| Json(link).into_response(),
    )
}

fn router(app: Arc<App>) -> Router {
    type Of = State<Arc<App>>;
    let status = |State(app): Of| async move { Json::<Snapshot>((*app.source.published.get()).clone()) };
    let text = |State(app): Of| async move {
        let text = metrics::text(&app.source.published.get());
        ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
    };
    let mut router = Router::new()
        .route("/api/v1/status", get(status))
        .route("/api/v1/summary", get(|State(app): Of| async move { Json(app.summary()) }))
        .route("/api/v1/fabric", get(|State(app): Of| async move { Json(app.source.layout.clone()) }))
        .route("/api/v1/links", get(|State(app): Of| async move { binary(app.current().to_bytes()) }))
        .route("/api/v1/history", get(|State(app): Of| async move { Json(app.past()) }))
        .route("/api/v1/history/{id}", get(past_frame))
        .route("/api/v1/link/{name}", get(link))
        .route("/api/v1/processes", get(|State(app): Of| async move { app.processes.json().await }))
        .route("/metrics", get(text))
        .route("/metrics/transport", get(|State(app): Of| async move { app.processes.metrics().await }));
    for (path, kind, text) in page::FILES {
        router = router.route(path, get(move || async move { ([(CONTENT_TYPE, kind)], text) }));
    }
    let missing = || async { error(StatusCode::NOT_FOUND, "there is no such page; / shows the fabric") };
    router.fallback(missing).with_state(app)
}

/// Adds to the history, all the time.
async fn keep_history(app: Arc<App>, step: Duration) {
    let mut ticks = interval_at(tokio::time::Instant::now() + step, step);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        app.record();
    }
}

impl Server {
    /// Listens in a thread of its own: on a loopback address, or on another one with a token, which requests have to show.
    ///
    /// # Errors
    /// [`HttpError`].
    pub fn start(address: SocketAddr, source: Source, token: Option<Token>) -> Result<Self, HttpError> {
        Self::start_with(address, source, token, Duration::from_secs(STEP.into()))
    }

    /// The same, with a frame of the history after each `step`.
    fn start_with(
        address: SocketAddr,
        source: Source,
        token: Option<Token>,
        step: Duration,
    ) -> Result<Self, HttpError> {
        let listening = Listening::new(address, token, "--token-file")?;
        let app = Arc::new(App::new(source));
        listening.serve(router(Arc::clone(&app)), keep_history(app, step)).map(Self)
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;

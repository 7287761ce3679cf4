//! The HTTP interface of an agent. It only shows, and listens on loopback addresses alone: whoever can reach it sees the whole fabric.
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
//! | `/metrics` | [metrics] for Prometheus |
//!
//! A page of somebody else's, in the browser of somebody who may reach the agent, must not read its answers. So no answer allows another
//! origin, and a request whose `Host` is no loopback address is refused: a name that leads here would make that page the same origin.
//!
//! With a [`Token`], each request but those for the files of the page has to show it, so that other users of the machine learn nothing.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval_at};

use crate::api::App;
use crate::history::STEP;
use crate::published::Source;
use crate::snapshot::Snapshot;
use crate::token::Token;
use crate::{metrics, page};

/// The interface cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// It would be open to others.
    #[error(
        "{0} is no loopback address: whoever reaches the agent sees the whole fabric; listen on 127.0.0.1 or [::1]"
    )]
    NotLoopback(SocketAddr),
    /// The port is in use, or the kernel refuses.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// There is no thread for it.
    #[error("cannot start the HTTP thread: {0}")]
    Thread(io::Error),
}

/// Serves until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// An answer that says what is wrong.
fn error(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
}

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

/// Whether a `Host` header names an address of this machine alone, with or without a port.
fn is_local(host: &str) -> bool {
    let without_port = match host.rsplit_once(':') {
        Some((before, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => before,
        _ => host,
    };
    let address = without_port.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    without_port.eq_ignore_ascii_case("localhost")
        || address.unwrap_or(without_port).parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Whether a request may be answered: those for the files of the page may always, which are the same for everybody.
fn is_allowed(token: Option<&Token>, request: &Request) -> bool {
    let shown = || request.headers().get(AUTHORIZATION).map_or(&[][..], HeaderValue::as_bytes);
    let is_file = || page::FILES.iter().any(|(path, ..)| *path == request.uri().path());
    token.is_none_or(|token| token.is_in(shown()) || is_file())
}

async fn guard(State(token): State<Option<Token>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let mut response = if is_local(host) {
        if is_allowed(token.as_ref(), &request) {
            next.run(request).await
        } else {
            let why = "the token of the agent is needed: Authorization: Bearer TOKEN";
            let mut response = error(StatusCode::UNAUTHORIZED, why);
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            response
        }
    } else {
        let why =
            format!("Host: {host}: this agent replies to requests for localhost, 127.0.0.1 and [::1] alone");
        error(StatusCode::MISDIRECTED_REQUEST, &why)
    };
    for (name, value) in page::HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn router(app: Arc<App>, token: Option<Token>) -> Router {
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
        .route("/metrics", get(text));
    for (path, kind, text) in page::FILES {
        router = router.route(path, get(move || async move { ([(CONTENT_TYPE, kind)], text) }));
    }
    let missing = || async { error(StatusCode::NOT_FOUND, "there is no such page; / shows the fabric") };
    router.fallback(missing).layer(middleware::from_fn_with_state(token, guard)).with_state(app)
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
    /// Listens on a loopback address, in a thread of its own. With a token, requests have to show it.
    ///
    /// # Errors
    /// The address is another one, or in use.
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
        if !address.ip().is_loopback() {
            return Err(HttpError::NotLoopback(address));
        }
        let failed = |error| HttpError::Listen(address, error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(HttpError::Thread)?;
        let (end, ended) = oneshot::channel();
        let app = Arc::new(App::new(source));
        let serve = move || {
            runtime.block_on(async move {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                tokio::select! {
                    _ = async { axum::serve(listener, router(Arc::clone(&app), token)).await } => {}
                    () = keep_history(Arc::clone(&app), step) => {}
                    _ = ended => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(serve);
        Ok(Self { address, end: Some(end), thread: Some(thread.map_err(HttpError::Thread)?) })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;

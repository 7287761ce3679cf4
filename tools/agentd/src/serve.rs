//! HTTP in a thread of its own, and who may ask.
//!
//! A page of somebody else's, in the browser of somebody who may reach this address, must not read the answers. So no answer allows
//! another origin. On a loopback address, a request whose `Host` is no loopback address is refused too: a name that leads here would make
//! that page the same origin. On other addresses a [`Token`] is needed, which no such page has.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::thread::JoinHandle;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, HOST, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use serde_json::json;
use tokio::sync::oneshot;

use crate::page;
use crate::token::Token;

/// The interface cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// It would be open to others.
    #[error(
        "{0} is no loopback address, so others can reach it; listen on 127.0.0.1 or [::1], or name a file with a token by {1}"
    )]
    NeedsToken(SocketAddr, &'static str),
    /// The port is in use, or the kernel refuses.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, io::Error),
    /// There is no thread for it.
    #[error("cannot start the HTTP thread: {0}")]
    Thread(io::Error),
}

/// Who may ask.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    token: Option<Token>,
    /// Only this machine can reach the address.
    is_local: bool,
}

/// Serves until it is dropped.
#[derive(Debug)]
pub(crate) struct Serving {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// An answer that says what is wrong.
pub(crate) fn error(status: StatusCode, why: &str) -> Response {
    (status, Json(json!({ "error": why }))).into_response()
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

impl Access {
    /// Whether a request may be answered: those for the files of the page may always, which are the same for everybody.
    fn allows(&self, request: &Request) -> bool {
        let shown = || request.headers().get(AUTHORIZATION).map_or(&[][..], HeaderValue::as_bytes);
        let is_file = || page::FILES.iter().any(|(path, ..)| *path == request.uri().path());
        self.token.as_ref().is_none_or(|token| token.is_in(shown()) || is_file())
    }
}

async fn guard(State(access): State<Access>, request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let mut response = if access.is_local && !is_local(host) {
        let why = format!("Host: {host}: only requests for localhost, 127.0.0.1 and [::1] are answered here");
        error(StatusCode::MISDIRECTED_REQUEST, &why)
    } else if access.allows(&request) {
        next.run(request).await
    } else {
        let why = "a token is needed: Authorization: Bearer TOKEN";
        let mut response = error(StatusCode::UNAUTHORIZED, why);
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        response
    };
    for (name, value) in page::HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A socket that listens, before there is a thread for it.
pub(crate) struct Listening {
    listener: TcpListener,
    address: SocketAddr,
    access: Access,
}

impl Listening {
    /// Listens on a loopback address, or on another one with a token, whose option is called `option`.
    ///
    /// # Errors
    /// [`HttpError`].
    pub(crate) fn new(
        address: SocketAddr,
        token: Option<Token>,
        option: &'static str,
    ) -> Result<Self, HttpError> {
        let is_local = address.ip().is_loopback();
        if !is_local && token.is_none() {
            return Err(HttpError::NeedsToken(address, option));
        }
        let failed = |error| HttpError::Listen(address, error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, access: Access { token, is_local } })
    }

    /// Serves these routes, while something else goes on beside.
    ///
    /// # Errors
    /// [`HttpError`].
    pub(crate) fn serve(
        self,
        router: Router,
        beside: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Serving, HttpError> {
        let Self { listener, address, access } = self;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(HttpError::Thread)?;
        let router = router.layer(middleware::from_fn_with_state(access, guard));
        let (end, ended) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async move {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                tokio::select! {
                    _ = async { axum::serve(listener, router).await } => {}
                    () = beside => {}
                    _ = ended => {}
                }
            });
            // A process that is asked for its counters just now is not waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(serve);
        Ok(Serving { address, end: Some(end), thread: Some(thread.map_err(HttpError::Thread)?) })
    }
}

impl Serving {
    /// Where it listens.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

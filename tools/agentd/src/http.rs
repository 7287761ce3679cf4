//! The HTTP interface of an agent. It only shows, and listens on loopback addresses alone: whoever can reach it sees the whole fabric.
//!
//! | Path | What |
//! |---|---|
//! | `/api/v1/status` | a [`Snapshot`], as JSON |
//! | `/metrics` | [metrics] for Prometheus |

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::oneshot;

use crate::metrics;
use crate::runner::Published;
use crate::snapshot::Snapshot;

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

fn router(published: Arc<Published>) -> Router {
    let status =
        |State(published): State<Arc<Published>>| async move { Json::<Snapshot>((*published.get()).clone()) };
    let text = |State(published): State<Arc<Published>>| async move {
        ([(CONTENT_TYPE, "text/plain; version=0.0.4")], metrics::text(&published.get())).into_response()
    };
    Router::new().route("/api/v1/status", get(status)).route("/metrics", get(text)).with_state(published)
}

impl Server {
    /// Listens on a loopback address, in a thread of its own.
    ///
    /// # Errors
    /// The address is another one, or in use.
    pub fn start(address: SocketAddr, published: Arc<Published>) -> Result<Self, HttpError> {
        if !address.ip().is_loopback() {
            return Err(HttpError::NotLoopback(address));
        }
        let failed = |error| HttpError::Listen(address, error);
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(HttpError::Thread)?;
        let (end, ended) = oneshot::channel();
        let serve = move || {
            runtime.block_on(async move {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                tokio::select! {
                    _ = async { axum::serve(listener, router(published)).await } => {}
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
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    /// The status line and the body of a reply.
    fn ask(address: SocketAddr, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }

    fn get(address: SocketAddr, path: &str) -> (String, String) {
        ask(address, &format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n"))
    }

    #[test]
    fn it_shows_what_is_published() {
        let published = Arc::new(Published::default());
        let server = Server::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&published)).unwrap();
        let known = Snapshot { host: "h7".to_owned(), ..Snapshot::default() };
        published.set(known.clone());
        let (status, body) = get(server.address(), "/api/v1/status");
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert_eq!(serde_json::from_str::<Snapshot>(&body).unwrap(), known);
        let (status, body) = get(server.address(), "/metrics");
        assert!(status.ends_with("200 OK") && body.contains("spindrift_agent_probes_sent_total 0"), "{body}");
        assert_eq!(get(server.address(), "/other").0, "HTTP/1.1 404 Not Found");
        let post =
            "POST /api/v1/status HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(ask(server.address(), post).0, "HTTP/1.1 405 Method Not Allowed");
        // Somebody who says nothing keeps nobody from ending.
        let silent = TcpStream::connect(server.address()).unwrap();
        let address = server.address();
        drop(server);
        assert!(TcpStream::connect(address).is_err());
        drop(silent);
    }

    #[test]
    fn it_listens_where_it_may() {
        let start = |address: &str| Server::start(address.parse().unwrap(), Arc::default());
        for address in ["0.0.0.0:0", "[::]:0", "10.0.0.1:0"] {
            let error = start(address).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{address} is no loopback address")), "{error}");
        }
        let first = start("127.0.0.1:0").unwrap();
        let error = start(&first.address().to_string()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot listen on {}: ", first.address())), "{error}");
    }
}

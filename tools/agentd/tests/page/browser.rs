//! A headless Chromium, spoken to over a pipe by the protocol of its developer tools.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long the page may take to show something. What takes longer never comes.
const PATIENCE: Duration = Duration::from_mins(2);

pub(crate) struct Browser {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    folder: PathBuf,
    session: String,
    last: u64,
    /// What went wrong in the page.
    errors: Vec<String>,
}

/// Whether there is a Chromium; says so if not.
pub(crate) fn is_there() -> bool {
    let found =
        Command::new("chromium").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        assert!(
            std::env::var_os("SPINDRIFT_REQUIRE_CHROMIUM").is_none(),
            "SPINDRIFT_REQUIRE_CHROMIUM is set and there is no chromium: apt-get install chromium"
        );
        eprintln!("skipped: there is no chromium (apt-get install chromium)");
    }
    found
}

impl Browser {
    pub(crate) fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("spindrift-page-{name}-{}", std::process::id()));
        // The descriptors 3 and 4 are the pipe; what the browser prints is no part of it.
        let script = "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
                      --disable-background-networking --disable-component-update --disable-sync \
                      --remote-debugging-pipe --user-data-dir=\"$0\" about:blank 3<&0 4>&1 0</dev/null 1>/dev/null";
        let mut command = Command::new("sh");
        // A browser that is killed leaves files in the folder for such.
        fs::create_dir_all(&folder).unwrap();
        command.args(["-c", script]).arg(&folder).env("HOME", &folder).env("TMPDIR", &folder);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let (to, from) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut browser =
            Self { process, to, from, folder, session: String::new(), last: 0, errors: Vec::new() };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let attached = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", &attached);
        session["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser has ended");
            let said: Value = serde_json::from_slice(&bytes).unwrap();
            if said["id"] == self.last {
                assert!(said["error"].is_null(), "{method}: {}", said["error"]);
                return said["result"].clone();
            }
            match said["method"].as_str() {
                Some("Runtime.exceptionThrown") => {
                    let details = &said["params"]["exceptionDetails"];
                    self.errors.push(format!("{} {}", details["text"], details["exception"]["description"]));
                }
                Some("Log.entryAdded") if said["params"]["entry"]["level"] == "error" => {
                    self.errors.push(said["params"]["entry"]["text"].to_string());
                }
                _ => {}
            }
        }
    }

    pub(crate) fn open(&mut self, url: &str) {
        self.call("Page.navigate", &json!({ "url": url }));
    }

    /// A window of this size, in light or dark colours.
    pub(crate) fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.call("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
    }

    /// How somebody sees the page whose eyes lack something.
    pub(crate) fn see_without(&mut self, what: &str) {
        self.call("Emulation.setEmulatedVisionDeficiency", &json!({ "type": what }));
    }

    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", &params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub(crate) fn until(&mut self, expression: &str) {
        let began = Instant::now();
        while self.eval(expression) != true {
            if began.elapsed() > PATIENCE {
                let text = self.eval("document.body.innerText");
                panic!("never true: {expression}\n{}\n{:?}", text.as_str().unwrap_or_default(), self.errors);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the text of an element has this in it.
    #[track_caller]
    pub(crate) fn shows(&mut self, element: &str, text: &str) {
        self.until(&format!("(document.querySelector({element:?})?.innerText ?? '').includes({text:?})"));
    }

    /// Presses a key, where the focus is.
    pub(crate) fn press(&mut self, key: &str) {
        let text = match key {
            "Enter" => "\r",
            key if key.len() == 1 => key,
            _ => "",
        };
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({ "type": kind, "key": key, "code": key });
            if kind == "keyDown" && !text.is_empty() {
                params["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", &params);
        }
    }

    /// Types a text, where the focus is.
    pub(crate) fn insert(&mut self, text: &str) {
        self.call("Input.insertText", &json!({ "text": text }));
    }

    /// Clicks at a place in an element, in pixels from its upper left corner.
    pub(crate) fn click(&mut self, element: &str, x: f64, y: f64) {
        let place = self.eval(&format!(
            "(() => {{ const found = document.querySelector({element:?}); found.scrollIntoView({{ block: 'center' }}); \
             const at = found.getBoundingClientRect(); return [at.left, at.top]; }})()"
        ));
        let at = |axis: usize| place[axis].as_f64().unwrap();
        for kind in ["mousePressed", "mouseReleased"] {
            let params =
                json!({ "type": kind, "x": at(0) + x, "y": at(1) + y, "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &params);
        }
    }

    /// What went wrong in the page since this was asked.
    pub(crate) fn errors(&mut self) -> Vec<String> {
        self.eval("0");
        std::mem::take(&mut self.errors)
    }

    /// A picture of the page, if `SPINDRIFT_PAGE_PICTURES` names a folder for them.
    pub(crate) fn picture(&mut self, name: &str, whole: bool) {
        let Some(folder) = std::env::var_os("SPINDRIFT_PAGE_PICTURES") else { return };
        let params = json!({ "format": "png", "captureBeyondViewport": whole });
        let mut params = params;
        if whole {
            let size = self.eval("[innerWidth, document.documentElement.scrollHeight]");
            params["clip"] = json!({ "x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1 });
        }
        let picture = self.call("Page.captureScreenshot", &params);
        std::fs::create_dir_all(&folder).unwrap();
        let bytes = decode(picture["data"].as_str().unwrap());
        std::fs::write(Path::new(&folder).join(format!("{name}.png")), bytes).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with its pipe too, but not before this returns.
        let _ = self.process.kill();
        let _ = self.process.wait();
        for _ in 0..100 {
            // Its other processes end when they notice, and may write until then.
            let _ = std::fs::remove_dir_all(&self.folder);
            if !self.folder.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The bytes of a text in base 64.
fn decode(text: &str) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        bits = bits << 6 | u32::from(value(letter));
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

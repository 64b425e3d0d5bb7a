//! A headless Chromium, driven by chromedriver over `WebDriver` (<https://www.w3.org/TR/webdriver2/>).
//!
//! What a test reads, it reads by a script in the page. What it does, it does as a user: by keys and clicks.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{PATIENCE, Process, directory, eventually};

pub(super) const ENTER: &str = "\u{e007}";
pub(super) const TAB: &str = "\u{e004}";
pub(super) const DOWN: &str = "\u{e015}";
pub(super) const ESCAPE: &str = "\u{e00c}";
pub(super) const BACKSPACE: &str = "\u{e003}";
pub(super) const END: &str = "\u{e010}";
pub(super) const HOME: &str = "\u{e011}";

/// For all scripts: the elements by their hooks, and the texts that a user sees.
const PRELUDE: &str = r#"
    const hooks = (id, root = document) => [...root.querySelectorAll(`[data-testid="${id}"]`)];
    const seen = (id) => hooks(id).find((element) => element.checkVisibility());
    const text = (id) => seen(id)?.innerText ?? "";
    const row = (word) => hooks("row").find((row) => row.innerText.includes(word));
"#;

/// How the page looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Light,
    Dark,
}

impl Scheme {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// A browser with one tab, and a profile of its own. Dropping it ends its processes: Chromium follows the end of
/// chromedriver, because their connection is a pipe.
pub(super) struct Browser {
    driver: Process,
    session: String,
    http: reqwest::Client,
}

impl Browser {
    /// Starts one.
    pub(super) async fn start() -> Result<Self> {
        static STARTED: AtomicU32 = AtomicU32::new(0);

        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory = directory()?.join(format!("browser-{number}"));
        std::fs::create_dir(&directory)?;
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").env("TMPDIR", &directory);
        let driver = Process::spawn("chromedriver", &mut command, &directory.join("log"));
        let driver = driver.context("run `scripts/need.sh page`")?;
        let port = eventually("chromedriver to listen", PATIENCE, async || {
            let log = driver.log();
            let (_, rest) = log.split_once("started successfully on port ")?;
            let (port, _) = rest.split_once('.')?;
            port.parse::<u16>().ok()
        });
        let url = format!("http://127.0.0.1:{}/session", port.await?);
        let mut browser = Self {
            driver,
            session: url,
            http: reqwest::Client::new(),
        };
        let profile = format!("--user-data-dir={}", directory.join("profile").display());
        let options = json!({"args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
            "--no-first-run", "--disable-lcd-text", "--remote-debugging-pipe", profile]});
        let wanted = json!({"browserName": "chrome", "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"}});
        let wanted = json!({"capabilities": {"alwaysMatch": wanted}});
        let session = browser.call(Method::POST, "", &wanted).await?;
        let id = session["sessionId"].as_str().context("a session")?;
        browser.session = format!("{}/{id}", browser.session);
        browser.resize(1280, 800).await?;
        Ok(browser)
    }

    /// Opens an address.
    pub(super) async fn open(&self, url: &str) -> Result<()> {
        let body = json!({"url": url});
        self.call(Method::POST, "/url", &body).await.map(drop)
    }

    /// Loads the page again.
    pub(super) async fn reload(&self) -> Result<()> {
        let path = "/refresh";
        self.call(Method::POST, path, &json!({})).await.map(drop)
    }

    /// Runs the body of a function in the page, and returns its value.
    pub(super) async fn run(&self, script: &str) -> Result<Value> {
        self.run_with(script, &[]).await
    }

    /// The same, with `arguments`.
    pub(super) async fn run_with(&self, script: &str, arguments: &[Value]) -> Result<Value> {
        let body = json!({"script": format!("{PRELUDE}{script}"), "args": arguments});
        self.call(Method::POST, "/execute/sync", &body).await
    }

    /// Waits until a script returns something other than null, false, 0 or an empty text; returns it.
    pub(super) async fn until(&self, what: &str, script: &str) -> Result<Value> {
        let found = eventually(what, PATIENCE, async || {
            let value = self.run(script).await.ok()?;
            let is_nothing = [json!(null), json!(false), json!(0), json!("")].contains(&value);
            (!is_nothing).then_some(value)
        });
        match found.await {
            Ok(value) => Ok(value),
            Err(error) => {
                let last = self.run(script).await;
                let page = self.run("return document.body.innerText").await?;
                let page = page.as_str().unwrap_or_default().to_owned();
                Err(error.context(format!("the last value: {last:?}, in:\n{page}")))
            }
        }
    }

    /// Presses keys, one after the other, wherever the focus is.
    pub(super) async fn keys(&self, keys: &str) -> Result<()> {
        let press = |key: char| {
            let key = key.to_string();
            [
                json!({"type": "keyDown", "value": key}),
                json!({"type": "keyUp", "value": key}),
            ]
        };
        let pressed: Vec<_> = keys.chars().flat_map(press).collect();
        let body = json!({"actions": [{"type": "key", "id": "keyboard", "actions": pressed}]});
        self.call(Method::POST, "/actions", &body).await.map(drop)
    }

    /// Presses Tab until an element with this hook has the focus.
    pub(super) async fn tab_to(&self, hook: &str) -> Result<()> {
        let mut passed = Vec::new();
        for _ in 0..30 {
            self.keys(TAB).await?;
            let focused =
                "return document.activeElement.dataset.testid ?? document.activeElement.innerText";
            let focused = self.run(focused).await?;
            if focused == hook {
                return Ok(());
            }
            passed.push(focused);
        }
        anyhow::bail!("Tab does not reach {hook}, only {passed:?}")
    }

    /// Clicks at an element.
    pub(super) async fn click(&self, selector: &str) -> Result<()> {
        let body = json!({"using": "css selector", "value": selector});
        let element = self.call(Method::POST, "/element", &body).await?;
        let ids = element.as_object().and_then(|ids| ids.values().next());
        let id = ids.and_then(Value::as_str).context("an element")?;
        let path = format!("/element/{id}/click");
        self.call(Method::POST, &path, &json!({})).await.map(drop)
    }

    /// Sets the size of what the page can fill.
    pub(super) async fn resize(&self, width: u32, height: u32) -> Result<()> {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", &size)
            .await
    }

    /// Sets whether the user prefers dark pages.
    pub(super) async fn prefer(&self, scheme: Scheme) -> Result<()> {
        // Without transitions: a colour that is between two others is not the page's.
        let features = json!([
            {"name": "prefers-color-scheme", "value": scheme.name()},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        let media = json!({"features": features});
        self.devtools("Emulation.setEmulatedMedia", &media).await
    }

    /// Writes a picture of what the page shows, as PNG.
    pub(super) async fn picture(&self, file: &Path) -> Result<()> {
        let picture = self.call(Method::GET, "/screenshot", &Value::Null);
        let smaller = include_str!("smaller.js");
        let picture = self.run_with(smaller, &[picture.await?]).await?;
        let ByteString(picture) = serde_json::from_value(picture)?;
        std::fs::create_dir_all(file.parent().context("a directory")?)?;
        Ok(std::fs::write(file, picture)?)
    }

    /// Returns what the browser has logged since the last call: errors of scripts, and what a policy has blocked.
    pub(super) async fn log(&self) -> Result<Vec<Value>> {
        let body = json!({"type": "browser"});
        let log = self.call(Method::POST, "/se/log", &body).await?;
        Ok(log.as_array().cloned().unwrap_or_default())
    }

    async fn devtools(&self, command: &str, parameters: &Value) -> Result<()> {
        let body = json!({"cmd": command, "params": parameters});
        let path = "/goog/cdp/execute";
        self.call(Method::POST, path, &body).await.map(drop)
    }

    async fn call(&self, method: Method, path: &str, body: &Value) -> Result<Value> {
        self.driver.must_run()?;
        let request = self.http.request(method, format!("{}{path}", self.session));
        let request = match body {
            Value::Null => request,
            body => request.json(body),
        };
        let answer: Value = request.send().await?.json().await?;
        let error = &answer["value"]["error"];
        ensure!(
            error.is_null(),
            "{path}: {error}: {}",
            answer["value"]["message"]
        );
        Ok(answer["value"].clone())
    }
}

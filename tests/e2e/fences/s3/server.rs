//! An S3-compatible server with one bucket. Requests without a signature may read and write its objects.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use reqwest::{Client, Method, Response};

use super::super::server::{Daemon, new_directory, output};
use crate::harness::{PATIENCE, own_port, target_directory};

const BUCKET: &str = "bucket";
const KEY: &str = "key";
const SECRET: &str = "secretsecret";
const REGION: &str = "us-east-1";
/// Only the tests' own requests have no signature. Those of the recipes do.
const POLICY: &str = r#"{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*",
    "Action": ["s3:GetObject", "s3:PutObject", "s3:ListBucket"],
    "Resource": ["arn:aws:s3:::bucket", "arn:aws:s3:::bucket/*"]}]}"#;

/// A server with its directory. Dropping it kills it.
pub(super) struct Server {
    daemon: Daemon,
    port: u16,
    http: Client,
}

impl Server {
    /// Starts a server with an empty bucket.
    pub(super) async fn start() -> Result<Self> {
        let port = own_port()?;
        let command = move |directory: &Path| command(directory, port);
        let directory = new_directory("s3")?;
        std::fs::create_dir(objects(&directory))?;
        let server = Self {
            daemon: Daemon::new(directory, command),
            port,
            http: Client::builder().no_proxy().timeout(PATIENCE).build()?,
        };
        server.restart().await?;
        let bucket = format!("{}/{BUCKET}", server.endpoint());
        setup(&bucket, &[])?;
        setup(&format!("{bucket}?policy="), &["--data", POLICY])?;
        Ok(server)
    }

    /// Starts it after a [`Self::kill`].
    pub(super) async fn restart(&self) -> Result<()> {
        // Any answer will do.
        let answers = async || Ok(self.http.get(self.endpoint()).send().await?);
        self.daemon.start(answers).await
    }

    /// Kills it without a warning.
    pub(super) fn kill(&self) -> Result<()> {
        self.daemon.kill()
    }

    /// Returns the URL of an object.
    pub(super) fn url(&self, object: &str) -> String {
        format!("{}/{BUCKET}/{object}", self.endpoint())
    }

    /// Returns the environment of the recipes' programs.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        let fences = Path::new(env!("CARGO_MANIFEST_DIR")).join("fences/s3");
        vec![
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_DEFAULT_REGION", REGION.to_owned()),
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("PYTHONDONTWRITEBYTECODE", "1".to_owned()),
            ("PYTHONPATH", fences.display().to_string()),
        ]
    }

    /// Writes an object, with a header and without a signature.
    pub(super) async fn put(
        &self,
        object: &str,
        header: (&'static str, &str),
        body: impl Into<String>,
    ) -> Result<Response> {
        let request = self.http.request(Method::PUT, self.url(object));
        let request = request.header(header.0, header.1).body(body.into());
        Ok(request.send().await?)
    }

    /// Returns an object, or `None` if it does not exist.
    pub(super) async fn get(&self, object: &str) -> Result<Option<Response>> {
        let response = self.http.get(self.url(object)).send().await?;
        if response.status() == 404 {
            return Ok(None);
        }
        Ok(Some(response.error_for_status()?))
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

fn objects(directory: &Path) -> PathBuf {
    directory.join("objects")
}

fn command(directory: &Path, port: u16) -> Result<Command> {
    let program = target_directory().join("controlplane/versitygw/versitygw");
    ensure!(
        program.exists(),
        "{} is missing: make fences",
        program.display()
    );
    let mut command = Command::new(program);
    command
        .env("ROOT_ACCESS_KEY", KEY)
        .env("ROOT_SECRET_KEY", SECRET)
        .args(["--port", &format!("127.0.0.1:{port}")])
        .args(["--quiet", "--keep-alive", "posix"])
        .arg(objects(directory));
    Ok(command)
}

/// Returns the Python that has boto3.
pub(super) fn python() -> Result<PathBuf> {
    let python = target_directory().join("fences/s3/venv/bin/python");
    ensure!(
        python.exists(),
        "{} is missing: make fences",
        python.display()
    );
    Ok(python)
}

/// Returns the `ETag` of an answer.
pub(super) fn etag(response: &Response) -> Result<String> {
    let etag = response.headers().get("etag").context("an ETag")?;
    Ok(etag.to_str()?.to_owned())
}

/// Sends a signed PUT.
fn setup(url: &str, arguments: &[&str]) -> Result<()> {
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--fail-with-body",
        "--request",
        "PUT",
    ])
    .args(["--aws-sigv4", &format!("aws:amz:{REGION}:s3")])
    .args(["--user", &format!("{KEY}:{SECRET}")])
    .args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
    .args(arguments)
    .arg(url);
    output(&mut curl)?;
    Ok(())
}

//! Reads a kubeconfig, and rejects or fixes it before the first request.
//!
//! Only the file counts. Variables such as `HTTPS_PROXY`, which a pod often has for its app, do not
//! affect the agent's own requests.

use std::path::Path;

use anyhow::{Context, anyhow, bail};
use http::{HeaderValue, Uri};
use kube::Config;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig, KubeconfigError};
use secrecy::{ExposeSecret, SecretString};

/// Loads this file, or the one that kubectl would use.
pub(super) async fn load(path: Option<&Path>, context: Option<&String>) -> anyhow::Result<Config> {
    let (read, name) = if let Some(path) = path {
        let name = format!("the kubeconfig {}", path.display());
        let read = Kubeconfig::read_from(path).map_err(redacted);
        let read = read.with_context(|| format!("cannot read {name}"))?;
        (read, name)
    } else {
        let read = Kubeconfig::read().map_err(redacted).with_context(|| {
            let files = std::env::var("KUBECONFIG").ok();
            files.filter(|files| !files.is_empty()).map_or_else(
                || {
                    "no API server is configured: give --kubeconfig, or run in a pod with a \
                     ServiceAccount token"
                        .to_owned()
                },
                |files| format!("cannot read the kubeconfig {files} (of KUBECONFIG)"),
            )
        })?;
        (read, "the kubeconfig".to_owned())
    };
    let options = KubeConfigOptions {
        context: context.cloned(),
        ..KubeConfigOptions::default()
    };
    let proxy = proxy_of(&read, context).map(str::to_owned);
    let used = async {
        let mut config = Config::from_custom_kubeconfig(read, &options).await?;
        config.proxy_url = proxy.as_deref().map(proxy_url).transpose()?;
        normalize_token(&mut config.auth_info)?;
        anyhow::Ok(config)
    };
    used.await.with_context(|| format!("cannot use {name}"))
}

/// Returns the error of an invalid file. The parser shows the lines around an error, which may have
/// tokens and keys.
fn redacted(error: KubeconfigError) -> anyhow::Error {
    let error = match error {
        KubeconfigError::Parse(error) => error,
        // Its text has the path, and its cause is in it again.
        KubeconfigError::ReadConfig(cause, _) => return cause.into(),
        error => return error.into(),
    };
    match error.location() {
        Some(at) => anyhow!(
            "it is no kubeconfig: see line {}, column {} (which is not shown, for the secrets in it)",
            at.line(),
            at.column()
        ),
        None => anyhow!("it is no kubeconfig"),
    }
}

/// Returns the proxy of the context's cluster.
fn proxy_of<'a>(kubeconfig: &'a Kubeconfig, context: Option<&'a String>) -> Option<&'a str> {
    let context = context.or(kubeconfig.current_context.as_ref())?;
    let named = kubeconfig
        .contexts
        .iter()
        .find(|one| one.name == *context)?;
    let cluster = &named.context.as_ref()?.cluster;
    let named = kubeconfig
        .clusters
        .iter()
        .find(|one| one.name == *cluster)?;
    let proxy = named.cluster.as_ref()?.proxy_url.as_deref()?;
    (!proxy.is_empty()).then_some(proxy)
}

/// The error does not repeat the URL, which may have a password.
fn proxy_url(text: &str) -> anyhow::Result<Uri> {
    let url: Uri = text
        .parse()
        .context("proxy-url is no URL; write http://HOST:PORT")?;
    let authority = url.authority().map_or("", |authority| authority.as_str());
    if url.scheme_str() != Some("http") || authority.is_empty() {
        bail!(
            "proxy-url must be http://HOST:PORT, a proxy that knows CONNECT; take it out if the \
             API server can be reached without"
        );
    }
    if authority.contains('@') {
        bail!(
            "proxy-url has a user name or a password in it, which are not sent; use a proxy that \
             asks for none"
        );
    }
    Ok(url)
}

/// Trims a token that was written with a line break, and rejects one that no header can carry.
fn normalize_token(user: &mut AuthInfo) -> anyhow::Result<()> {
    if let Some(token) = &user.token {
        let trimmed = token.expose_secret().trim();
        check_token(trimmed).context("the user's token")?;
        user.token = Some(SecretString::from(trimmed));
    } else if let Some(file) = &user.token_file {
        // The file is re-read later, and not trimmed.
        let token = std::fs::read_to_string(file)
            .with_context(|| format!("the user's tokenFile {file} cannot be read"))?;
        check_token(&token).with_context(|| format!("the user's tokenFile {file}"))?;
    }
    Ok(())
}

fn check_token(token: &str) -> anyhow::Result<()> {
    if HeaderValue::from_str(token).is_err() {
        bail!(
            "it has a character that no HTTP header can carry, such as a line break; write the \
             token in one line without an end (`printf %s`, not `echo`)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn the_proxy_is_the_one_of_the_contexts_cluster() {
        let kubeconfig = Kubeconfig::from_yaml(
            "{current-context: a, \
             contexts: [{name: a, context: {cluster: k}}, {name: b, context: {cluster: l}}, \
             {name: c, context: {cluster: m}}], \
             clusters: [{name: k, cluster: {server: 'https://k'}}, \
             {name: l, cluster: {server: 'https://l', proxy-url: 'http://proxy:3128'}}, \
             {name: m, cluster: {server: 'https://m', proxy-url: ''}}]}",
        )
        .unwrap();
        let of =
            |context: &str| proxy_of(&kubeconfig, Some(&context.to_owned())).map(str::to_owned);
        assert_eq!(proxy_of(&kubeconfig, None), None);
        assert_eq!(of("b").as_deref(), Some("http://proxy:3128"));
        assert_eq!((of("c"), of("d")), (None, None));
    }

    #[test]
    fn unusable_proxy_is_refused_without_showing_its_password() {
        assert!(proxy_url("http://proxy.example:3128").is_ok());
        for (bad, words) in [
            ("socks5://proxy:1080", "must be http://"),
            ("https://proxy:3129", "must be http://"),
            ("proxy:3128", "must be http://"),
            ("http://", "no URL"),
            ("http://me:secret@proxy", "which are not sent"),
        ] {
            let said = format!("{:#}", proxy_url(bad).unwrap_err());
            assert!(
                said.contains(words) && !said.contains("secret"),
                "{bad}: {said}"
            );
        }
    }

    #[test]
    fn token_loses_its_line_break_and_nothing_else() {
        let user = |token: &str| AuthInfo {
            token: Some(SecretString::from(token)),
            ..AuthInfo::default()
        };
        let mut good = user("abc.def\n");
        normalize_token(&mut good).unwrap();
        assert_eq!(good.token.unwrap().expose_secret(), "abc.def");
        for bad in ["abc\ndef", "abc\u{0}"] {
            let said = format!("{:#}", normalize_token(&mut user(bad)).unwrap_err());
            assert!(
                said.contains("in one line") && !said.contains("abc"),
                "{said}"
            );
        }
    }

    /// Returns a kubeconfig in which these values are secrets, however a user edits the rest.
    fn with_secrets() -> Value {
        json!({
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {
                "server": "https://me:s3cret@k:6443/", "proxy-url": "http://me:s3cret@proxy:3128",
                "certificate-authority-data": "s3cret-"}}],
            "users": [{"name": "u", "user": {"token": "s3cret\n-", "username": "me", "password": "s3cret",
                "client-key-data": "s3cret-", "client-certificate-data": "s3cret-"}}],
        })
    }

    /// Collects copies of `whole`, each with one of the values in it (or itself) replaced.
    fn each_replaced(whole: &Value, by: &dyn Fn(&Value) -> Value, found: &mut Vec<Value>) {
        found.push(by(whole));
        let mut inside = |at: &dyn Fn(&mut Value) -> &mut Value, part: &Value| {
            let mut parts = Vec::new();
            each_replaced(part, by, &mut parts);
            for part in parts {
                let mut whole = whole.clone();
                *at(&mut whole) = part;
                found.push(whole);
            }
        };
        match whole {
            Value::Object(members) => {
                for (name, part) in members {
                    inside(&|whole| &mut whole[name.as_str()], part);
                }
            }
            Value::Array(elements) => {
                for (place, part) in elements.iter().enumerate() {
                    inside(&|whole| &mut whole[place], part);
                }
            }
            _ => {}
        }
    }

    #[tokio::test]
    async fn errors_about_a_broken_kubeconfig_show_no_secret() {
        let good = with_secrets();
        let ways: [&dyn Fn(&Value) -> Value; 5] = [
            &|_| Value::Null,
            &|_| json!(7),
            &|part| json!(if part.is_string() { "other" } else { "s3cret" }),
            &|part| json!([part]),
            &|part| json!({"s3cret": part}),
        ];
        let mut broken = Vec::new();
        for way in ways {
            each_replaced(&good, way, &mut broken);
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        let mut refused = 0;
        for kubeconfig in &broken {
            std::fs::write(&file, kubeconfig.to_string()).unwrap();
            let Err(error) = load(Some(&file), None).await else {
                continue;
            };
            refused += 1;
            let said = format!("{error:#} {error:?}");
            assert!(!said.contains("s3cret"), "{said}\n{kubeconfig}");
        }
        assert!(refused > 100, "{refused} of {}", broken.len());
        for text in [
            "users:\n- user:\n    token: s3cret\n   x: [",
            "{users: [{user: {token: s3cret",
        ] {
            std::fs::write(&file, text).unwrap();
            let error = load(Some(&file), None).await.err().unwrap();
            let said = format!("{error:#} {error:?}");
            assert!(
                said.contains("see line") && !said.contains("s3cret"),
                "{said}"
            );
        }
    }
}

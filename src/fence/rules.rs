//! Which requests need a token, and of which resource. Pure: a decision about a method, a path and headers.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Uri};
use matchit::Router;
use percent_encoding::percent_decode_str;

use super::headers;
use super::refusal::{Code, Refusal};
use crate::protocol::ids::Resource;
use crate::protocol::token::{LEASES_PER_GRANT, MAX_BASE, Token};

/// The header of the token.
pub(super) const TOKEN: HeaderName = HeaderName::from_static("x-fencing-token");
/// The header of the resource.
pub(super) const RESOURCE: HeaderName = HeaderName::from_static("x-fencing-resource");

/// The largest token.
const TOKEN_MAX: u64 = MAX_BASE + LEASES_PER_GRANT - 1;

/// With them some frameworks execute a GET as another method.
const OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-method-override"),
];

/// From them some frameworks take another path than the request's.
const OTHER_PATHS: [HeaderName; 2] = [
    HeaderName::from_static("x-original-url"),
    HeaderName::from_static("x-rewrite-url"),
];

/// Where the name of the resource comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The header `X-Fencing-Resource`.
    Header,
    /// All requests write to one resource.
    Fixed(Resource),
    /// The rule that matches the path best.
    Paths(Box<Router<Template>>),
}

/// The name of a resource, with parts of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Parameter(String),
}

/// The rules.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The methods of requests that change nothing. All others need a token.
    pub open_methods: Vec<Method>,
    /// Whether WebSockets need no token.
    pub has_open_websockets: bool,
    /// Where the name of the resource comes from.
    pub source: Source,
}

impl Rules {
    /// Returns what a request writes to and its token; `None` if it needs none.
    ///
    /// # Errors
    /// A [`Refusal`] that says what the request lacks.
    pub(super) fn judge(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<(Resource, Token)>, Refusal> {
        if self.is_open(method, headers) {
            return Ok(None);
        }
        let token = token(headers)?;
        Ok(Some((self.resource(uri, headers)?, token)))
    }

    fn is_open(&self, method: &Method, headers: &HeaderMap) -> bool {
        if headers::asks_for_websocket(headers) && !self.has_open_websockets {
            return false;
        }
        self.open_methods.contains(method) && !has_any(headers, &OVERRIDES)
    }

    fn resource(&self, uri: &Uri, headers: &HeaderMap) -> Result<Resource, Refusal> {
        let named = one(headers, &RESOURCE, Code::ResourceInvalid)?
            .map(named)
            .transpose()?;
        let own = match &self.source {
            Source::Header => {
                return named.ok_or_else(|| {
                    Refusal::new(
                        Code::ResourceRequired,
                        "this request needs the header X-Fencing-Resource with the name of the lock",
                    )
                });
            }
            Source::Fixed(resource) => resource.clone(),
            Source::Paths(_) if has_any(headers, &OTHER_PATHS) => {
                let detail = "X-Original-URL and X-Rewrite-URL name a second path; send the request without them";
                return Err(Refusal::new(Code::InvalidRequest, detail));
            }
            Source::Paths(rules) => by_path(rules, uri.path())?,
        };
        if let Some(other) = named.filter(|named| *named != own) {
            return Err(Refusal::new(
                Code::ResourceInvalid,
                format!("this request writes to {own}, and X-Fencing-Resource names {other}"),
            ));
        }
        Ok(own)
    }
}

/// Returns whether a service may take a header for one of these.
fn has_any(headers: &HeaderMap, others: &[HeaderName]) -> bool {
    let mut names = headers.keys();
    names.any(|name| others.iter().any(|other| headers::reads_as(name, other)))
}

/// Returns whether the rules read this header.
pub(super) fn is_judged(name: &HeaderName) -> bool {
    let is_read = |own: &HeaderName| headers::reads_as(name, own);
    OVERRIDES.iter().any(is_read)
        || OTHER_PATHS.iter().any(is_read)
        || [TOKEN, RESOURCE].iter().any(is_read)
}

/// Reads the token.
fn token(headers: &HeaderMap) -> Result<Token, Refusal> {
    let Some(value) = one(headers, &TOKEN, Code::TokenInvalid)? else {
        return Err(Refusal::new(
            Code::TokenRequired,
            "this request needs the header X-Fencing-Token with the fencing token of the lease",
        ));
    };
    let digits = value.to_str().unwrap_or_default();
    let is_number = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    match digits.parse().ok().filter(|_| is_number) {
        Some(number @ 1..=TOKEN_MAX) => Ok(Token::from_raw(number)),
        _ => Err(Refusal::new(
            Code::TokenInvalid,
            format!("X-Fencing-Token must be one whole number from 1 to {TOKEN_MAX}"),
        )),
    }
}

/// Returns the value of a header that may be there once.
fn one<'h>(
    headers: &'h HeaderMap,
    name: &HeaderName,
    code: Code,
) -> Result<Option<&'h HeaderValue>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let value = values.next();
    if values.next().is_some() {
        let detail = format!("the header {name} is repeated");
        return Err(Refusal::new(code, detail));
    }
    Ok(value)
}

fn named(value: &HeaderValue) -> Result<Resource, Refusal> {
    let Ok(text) = std::str::from_utf8(value.as_bytes()) else {
        let detail = "X-Fencing-Resource must be UTF-8";
        return Err(Refusal::new(Code::ResourceInvalid, detail));
    };
    // A proxy may have made one line of two (RFC 9110, section 5.3).
    if text.contains(',') {
        let detail = "X-Fencing-Resource has a comma: it is repeated, or the name of the lock needs a flag of the fence";
        return Err(Refusal::new(Code::ResourceInvalid, detail));
    }
    parsed(text)
}

fn parsed(text: &str) -> Result<Resource, Refusal> {
    Resource::parse(text).map_err(|error| Refusal::new(Code::ResourceInvalid, error.to_string()))
}

/// Finds the resource of a path. The service must see the same path, so one that it could understand in another way is
/// refused.
fn by_path(rules: &Router<Template>, raw: &str) -> Result<Resource, Refusal> {
    let path = percent_decode_str(raw).decode_utf8().unwrap_or_default();
    let slashes = |text: &str| text.bytes().filter(|byte| *byte == b'/').count();
    if !is_plain(&path) || slashes(&path) != slashes(raw) {
        return Err(Refusal::new(
            Code::InvalidRequest,
            "the path can be read in more than one way; send it without empty or dotted parts, ;, \\ and encoded / or %",
        ));
    }
    let resource = |path: &str| {
        let found = rules.at(path).ok()?;
        let parameter = |name: &str| found.params.get(name).unwrap_or_default().to_owned();
        Some(found.value.fill(parameter))
    };
    let Some(found) = resource(&path) else {
        return Err(Refusal::new(
            Code::ResourceRequired,
            format!("no --resource-rule has a resource for {path}"),
        ));
    };
    let without_slash = path.strip_suffix('/').and_then(resource);
    if without_slash.is_some_and(|other| other != found) {
        let detail = "many services read this path as the one without its last /, which is another resource; send that";
        return Err(Refusal::new(Code::InvalidRequest, detail));
    }
    parsed(&found)
}

/// Returns whether each service understands a path in the same way.
fn is_plain(path: &str) -> bool {
    path.starts_with('/')
        && !path.contains(['\\', '%', ';'])
        && !path.contains("//")
        && !path.chars().any(char::is_control)
        && path.split('/').all(|part| part != "." && part != "..")
}

impl Template {
    fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after
                .split_once('}')
                .ok_or_else(|| format!("{text}: a {{ has no }}"))?;
            parts.push(Part::Text(before.to_owned()));
            parts.push(Part::Parameter(name.to_owned()));
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self(parts))
    }

    fn fill(&self, value: impl Fn(&str) -> String) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Parameter(name) => value(name),
        };
        self.0.iter().map(text).collect()
    }

    fn parameters(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Parameter(name) => Some(name.as_str()),
            Part::Text(_) => None,
        })
    }
}

/// Reads rules `PATH=RESOURCE`, such as `/accounts/{id}/{*rest}=account-{id}`.
///
/// # Errors
/// What is wrong, and with which rule.
pub fn paths(rules: &[String]) -> Result<Source, String> {
    let mut router = Router::new();
    for rule in rules {
        let (path, resource) = rule
            .split_once('=')
            .filter(|(path, resource)| path.starts_with('/') && !resource.is_empty())
            .ok_or_else(|| {
                format!("{rule}: write PATH=RESOURCE, as /accounts/{{id}}=account-{{id}}")
            })?;
        if !is_plain(path) {
            return Err(format!(
                "{rule}: no request has this path: it has empty or dotted parts, ;, \\ or %"
            ));
        }
        let template = Template::parse(resource)?;
        let is_unknown = |name: &&str| name.starts_with('*') || !has_parameter(path, name);
        if let Some(unknown) = template.parameters().find(is_unknown) {
            return Err(format!("{rule}: the path has no {{{unknown}}}"));
        }
        router
            .insert(path, template)
            .map_err(|error| format!("{rule}: {error}"))?;
    }
    Ok(Source::Paths(Box::new(router)))
}

fn has_parameter(path: &str, name: &str) -> bool {
    path.contains(&format!("{{{name}}}")) || path.contains(&format!("{{*{name}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(source: Source) -> Rules {
        Rules {
            open_methods: vec![Method::GET, Method::HEAD],
            has_open_websockets: false,
            source,
        }
    }

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    }

    /// Judges a POST with a valid token.
    fn post(rules: &Rules, path: &str, lines: &[(&'static str, &str)]) -> Result<String, Code> {
        let mut headers = headers(lines);
        headers.insert(TOKEN, HeaderValue::from(7));
        let judged = rules.judge(&Method::POST, &path.parse().unwrap(), &headers);
        let judged = judged.map_err(|refusal| refusal.code)?;
        Ok(judged.unwrap().0.to_string())
    }

    fn by_paths(lines: &[&str]) -> Rules {
        let lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
        rules(paths(&lines).unwrap())
    }

    #[test]
    fn only_requests_that_may_write_need_a_token() {
        let rules = rules(Source::Header);
        let judge = |method: &Method, lines: &[(&'static str, &str)]| {
            let judged = rules.judge(method, &Uri::from_static("/"), &headers(lines));
            judged.map_err(|refusal| refusal.code)
        };
        assert_eq!(judge(&Method::GET, &[]), Ok(None));
        for method in [
            Method::POST,
            Method::OPTIONS,
            Method::from_bytes(b"MKCOL").unwrap(),
        ] {
            assert_eq!(judge(&method, &[]), Err(Code::TokenRequired), "{method}");
        }
        for disguised in [
            "x-http-method",
            "x_method_override",
            "x-http_method-override",
            "x-http.method-override",
        ] {
            let lines = [(disguised, "DELETE")];
            assert_eq!(judge(&Method::GET, &lines), Err(Code::TokenRequired));
        }
        let upgrade = |to| [("connection", "Upgrade"), ("upgrade", to)];
        let websocket = judge(&Method::GET, &upgrade("websocket"));
        assert_eq!(websocket, Err(Code::TokenRequired));
        // Java's client asks for it by default. It is not forwarded.
        assert_eq!(judge(&Method::GET, &upgrade("h2c")), Ok(None));
    }

    #[test]
    fn token_is_one_whole_number() {
        let read = |lines: &[_]| token(&headers(lines)).map_err(|refusal| refusal.code);
        for good in ["1", "1843000", "9007199254740991"] {
            assert!(read(&[("x-fencing-token", good)]).is_ok(), "{good}");
        }
        let bad = [
            "",
            "0",
            "-1",
            "+1",
            "1e3",
            "1.0",
            "5,6",
            "0x10",
            "9007199254740992",
            "٣",
            "007",
            "99999999999999999999",
        ];
        for bad in bad {
            let read = read(&[("x-fencing-token", bad)]);
            assert_eq!(read, Err(Code::TokenInvalid), "{bad}");
        }
        let twice = [("x-fencing-token", "5"), ("x-fencing-token", "5")];
        assert_eq!(read(&twice), Err(Code::TokenInvalid));
    }

    #[test]
    fn resource_is_named_by_the_header_or_by_the_configuration() {
        let header = rules(Source::Header);
        assert_eq!(post(&header, "/", &[]), Err(Code::ResourceRequired));
        let named = [("x-fencing-resource", "bücher")];
        assert_eq!(post(&header, "/", &named), Ok("bücher".to_owned()));
        let twice = [named[0], named[0]];
        assert_eq!(post(&header, "/", &twice), Err(Code::ResourceInvalid));
        let empty = [("x-fencing-resource", "")];
        assert_eq!(post(&header, "/", &empty), Err(Code::ResourceInvalid));
        let joined = [("x-fencing-resource", "a, b")];
        assert_eq!(post(&header, "/", &joined), Err(Code::ResourceInvalid));

        let fixed = rules(Source::Fixed(Resource::parse("report").unwrap()));
        assert_eq!(post(&fixed, "/", &[]), Ok("report".to_owned()));
        let same = [("x-fencing-resource", "report")];
        assert_eq!(post(&fixed, "/", &same), Ok("report".to_owned()));
        assert_eq!(post(&fixed, "/", &named), Err(Code::ResourceInvalid));
    }

    #[test]
    fn resource_is_taken_from_the_path() {
        let rules = by_paths(&[
            "/accounts/{id}=account-{id}",
            "/accounts/{id}/{*rest}=account-{id}",
            "/report=report",
        ]);
        let of = |path| post(&rules, path, &[]);
        for path in ["/accounts/7", "/accounts/7/a/b?x=1", "/accounts/%37"] {
            assert_eq!(of(path), Ok("account-7".to_owned()), "{path}");
        }
        assert_eq!(of("/accounts/m%C3%BCller"), Ok("account-müller".to_owned()));
        for other in ["/", "/Accounts/7", "/accounts", "/report/"] {
            assert_eq!(of(other), Err(Code::ResourceRequired), "{other}");
        }
    }

    #[test]
    fn path_that_can_be_read_in_two_ways_is_refused() {
        let rules = by_paths(&["/accounts/{id}=account-{id}", "/{*rest}=rest"]);
        let paths = [
            "//accounts/7",
            "/accounts/8/../7",
            "/./accounts/7",
            "/accounts/8/%2e%2e/7",
            "/accounts%2F7",
            "/accounts%5c7",
            "/accounts/%2537",
            "/accounts;x/7",
            "/accounts/%00",
            "/accounts/%ff",
            "/accounts/7/",
        ];
        for path in paths {
            assert_eq!(post(&rules, path, &[]), Err(Code::InvalidRequest), "{path}");
        }
        assert_eq!(post(&rules, "/others/7/", &[]), Ok("rest".to_owned()));
        for other in ["x-original-url", "x_rewrite-url"] {
            let lines = [(other, "/others")];
            let judged = post(&rules, "/accounts/7", &lines);
            assert_eq!(judged, Err(Code::InvalidRequest), "{other}");
        }
    }

    #[test]
    fn wrong_rule_is_named() {
        let wrong = |rule: &str| paths(&[rule.to_owned()]).unwrap_err();
        assert!(wrong("accounts=x").contains("PATH=RESOURCE"));
        assert!(wrong("/accounts=").contains("PATH=RESOURCE"));
        assert!(wrong("/accounts/{id}=a-{name}").contains("{name}"));
        assert!(wrong("/a/{*rest}=a-{*rest}").contains("{*rest}"));
        assert!(wrong("/a//b=a").contains("no request has this path"));
        assert!(wrong("/accounts/{id}=a-{id").contains("has no }"));
        assert!(wrong("/a/{id=a").contains("/a/{id"));
        let twice = ["/a/{x}=x".to_owned(), "/a/{y}=y".to_owned()];
        assert!(paths(&twice).is_err());
    }
}

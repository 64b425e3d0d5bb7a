//! Templates and what they print. The first objects are those of kubectl's documentation.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn cluster() -> Value {
    json!({
        "kind": "List",
        "items": [
            {
                "kind": "None",
                "metadata": {
                    "name": "127.0.0.1",
                    "labels": {"kubernetes.io/hostname": "127.0.0.1"},
                },
                "status": {"capacity": {"cpu": "4"}, "addresses": [{"type": "LegacyHostIP"}]},
            },
            {
                "kind": "None",
                "metadata": {"name": "127.0.0.2"},
                "status": {"capacity": {"cpu": "8"}},
            },
        ],
        "users": [
            {"name": "myself", "user": {}},
            {"name": "e2e", "user": {"username": "admin", "password": "secret"}},
        ],
    })
}

/// Returns what a template prints for the cluster.
fn print(template: &str) -> String {
    render_on(template, &cluster())
}

fn render_on(template: &str, object: &Value) -> String {
    template.parse::<Template>().unwrap().render(object)
}

fn problem(template: &str) -> String {
    template.parse::<Template>().unwrap_err().problem
}

#[test]
fn examples_of_the_documentation_print_the_same() {
    let cases = [
        ("kind is {.kind}", "kind is List"),
        ("{.kind}", "List"),
        ("{['kind']}", "List"),
        ("{['name\\.type']}", ""),
        ("{..name}", "127.0.0.1 127.0.0.2 myself e2e"),
        ("{.items[*].metadata.name}", "127.0.0.1 127.0.0.2"),
        ("{.users[0].name}", "myself"),
        (
            "{.items[0].metadata.labels.kubernetes\\.io/hostname}",
            "127.0.0.1",
        ),
        (
            "{.items[*]['metadata.name', 'status.capacity']}",
            r#"127.0.0.1 127.0.0.2 {"cpu":"4"} {"cpu":"8"}"#,
        ),
        (r#"{.users[?(@.name=="e2e")].user.password}"#, "secret"),
        (
            "{range .items[*]}[{.metadata.name}, {.status.capacity}] {end}",
            r#"[127.0.0.1, {"cpu":"4"}] [127.0.0.2, {"cpu":"8"}] "#,
        ),
        (
            r#"{range .items[*]}{.metadata.name}{"\t"}{end}"#,
            "127.0.0.1\t127.0.0.2\t",
        ),
    ];
    for (template, expected) in cases {
        assert_eq!(print(template), expected, "{template}");
    }
}

#[test]
fn current_object_is_the_root_outside_of_a_range() {
    let object = json!({"a": 1});
    for template in ["{@}", "{$}", "{.}", "{}"] {
        assert_eq!(render_on(template, &object), r#"{"a":1}"#, "{template}");
    }
    assert_eq!(render_on("{$.a}{@.a}{ .a }", &object), "111");
}

#[test]
fn missing_keys_print_nothing() {
    for template in [
        "{.missing}",
        "{.kind.a.b}",
        "{.users.name}",
        "{.users[7].name}",
        "{.users[-7]}",
        "{.kind[0]}",
        "{..missing}",
        "{range .missing[*]}x{end}",
    ] {
        assert_eq!(print(template), "", "{template}");
    }
}

#[test]
fn values_are_printed_by_their_type() {
    let object = json!({
        "s": "a \"b\"\u{1b}", "n": 9_007_199_254_740_991_i64, "f": 1.5, "b": true, "z": null,
        "l": [1, "x"], "o": {"k": "v"},
    });
    assert_eq!(render_on("{.s}", &object), "a \"b\"\u{1b}");
    assert_eq!(
        render_on("{.n} {.f} {.b} {.z} {.l} {.o}", &object),
        r#"9007199254740991 1.5 true  [1,"x"] {"k":"v"}"#
    );
}

#[test]
fn indexes_and_slices_are_those_of_kubectl() {
    let object = json!({"a": ["a", "b", "c", "d"]});
    let cases = [
        ("{.a[0]}", "a"),
        ("{.a[]}", "a"),
        ("{.a[-1]}", "d"),
        ("{.a[1:3]}", "b c"),
        ("{.a[2:]}", "c d"),
        ("{.a[:2]}", "a b"),
        ("{.a[-2:]}", "c d"),
        ("{.a[:-1]}", "a b c"),
        ("{.a[::2]}", "a c"),
        ("{.a[0:9]}", "a b c d"),
        ("{.a[1:1]}", ""),
        ("{.a[3, 0]}", "d a"),
        ("{.a[0,2:]}", "a c d"),
        ("{.a.*}", "a b c d"),
    ];
    for (template, expected) in cases {
        assert_eq!(render_on(template, &object), expected, "{template}");
    }
}

#[test]
fn names_may_have_dots_quotes_and_any_letter() {
    let object = json!({
        "app.kubernetes.io/name": "dots", "a'b": "quote", "注文": "wide", "a-b_c/d": "plain",
        "x": {"y": "nested"}, "a]b": "bracket",
    });
    let cases = [
        (r"{.app\.kubernetes\.io/name}", "dots"),
        (r"{['app\.kubernetes\.io/name']}", "dots"),
        (r#"{["app\.kubernetes\.io/name"]}"#, "dots"),
        (r"{.a\'b}", "quote"),
        (r#"{["a'b"]}"#, "quote"),
        ("{.注文}", "wide"),
        ("{.a-b_c/d}", "plain"),
        ("{['x.y']}", "nested"),
        ("{['x']['y']}", "nested"),
        ("{['a]b']}", "bracket"),
    ];
    for (template, expected) in cases {
        assert_eq!(render_on(template, &object), expected, "{template}");
    }
}

#[test]
fn filters_compare_strings_numbers_and_bools() {
    let object = json!({"a": [
        {"n": 1, "s": "x", "b": true, "t": "x"},
        {"n": 2, "s": "y}", "b": false, "t": "z"},
        {"n": 2.5, "s": "(z)]", "c": null},
    ]});
    let cases = [
        (r#"{.a[?(@.s=="x")].n}"#, "1"),
        (r"{.a[?(@.s=='x')].n}", "1"),
        (r#"{.a[?(@.s == "y}")].n}"#, "2"),
        (r#"{.a[?( @.s=="(z)]" )].n}"#, "2.5"),
        (r#"{.a[?("x"==@.s)].n}"#, "1"),
        (r#"{.a[?(.s!="x")].n}"#, "2 2.5"),
        ("{.a[?(@.n>1)].n}", "2 2.5"),
        ("{.a[?(@.n>=2.5)].n}", "2.5"),
        ("{.a[?(@.n<2)].n}", "1"),
        ("{.a[?(@.n<=2)].n}", "1 2"),
        ("{.a[?(@.n>-1)].n}", "1 2 2.5"),
        ("{.a[?(@.b==true)].n}", "1"),
        ("{.a[?(@.b!=true)].n}", "2"),
        ("{.a[?(@.s==@.t)].n}", "1"),
        ("{.a[?(@.b)].n}", "1 2"),
        ("{.a[?(@['c'])].n}", "2.5"),
        ("{.a[?(@)].n}", "1 2 2.5"),
        ("{..[?(@.n==2)].s}", "y}"),
    ];
    for (template, expected) in cases {
        assert_eq!(render_on(template, &object), expected, "{template}");
    }
    assert_eq!(render_on("{[?(@>1)]}", &json!([1, 2, 3])), "2 3");
}

#[test]
fn missing_value_is_neither_equal_nor_different() {
    let object = json!({"a": [{"n": 1}, {"n": 2, "s": "x"}]});
    assert_eq!(render_on(r#"{.a[?(@.s!="y")].n}"#, &object), "2");
    assert_eq!(render_on("{.a[?(@.s==@.t)].n}", &object), "");
}

#[test]
fn ranges_can_be_nested() {
    let object = json!({"a": [{"n": 1, "b": ["x", "y"]}, {"n": 2, "b": []}, {"n": 3}]});
    assert_eq!(
        render_on("{range .a[*]}{.n}:{range .b[*]}<{@}>{end};{end}!", &object),
        "1:<x><y>;2:;3:;!"
    );
}

#[test]
fn strings_have_the_escapes_of_go() {
    assert_eq!(
        print(r#"{"a\n\t\r\"\\\x41\u00e9\U0001f680}"}{'it\'s'}"#),
        "a\n\t\r\"\\A\u{e9}\u{1f680}}it's"
    );
}

#[test]
fn text_outside_of_braces_is_printed() {
    assert_eq!(print(".kind }\n"), ".kind }\n");
    assert_eq!(print(""), "");
}

#[test]
fn union_is_in_the_order_of_its_paths() {
    let object = json!([{"a": 1, "b": 2}, {"a": 3, "b": 4}]);
    assert_eq!(render_on("{[*]['a','b']}", &object), "1 3 2 4");
}

#[test]
fn invalid_templates_are_rejected() {
    let cases = [
        ("{.a", "expected } at the end"),
        (
            "{",
            "expected a path such as .metadata.name, a string, range or end at the end",
        ),
        ("{.a b}", r#"expected } at "b}""#),
        (
            "{metadata.name}",
            "expected a path such as .metadata.name, a string, range or end at \"metadata.name}\"",
        ),
        ("{end}", "not in range, nothing to end"),
        ("{range .a}x", "a range has no {end}"),
        ("{.a[}", r#"invalid array index "}""#),
        ("{.a[0", "expected ] at the end"),
        ("{.a['b}", "unterminated name in brackets"),
        ("{\"a}", "unterminated string at \"\\\"a}\""),
        (r#"{"\q"}"#, r"unknown escape \q"),
        (
            r#"{"\ud800"}"#,
            "expected a character's number in hexadecimal at \"d800\\\"}\"",
        ),
        (
            r#"{"\x+1"}"#,
            "expected a character's number in hexadecimal at \"+1\\\"}\"",
        ),
        (
            r#"{"\u12é"}"#,
            "expected a character's number in hexadecimal at \"12é\\\"}\"",
        ),
        ("{.a[x]}", "invalid array index \"x\""),
        ("{.a[1:2:3:4]}", "invalid array index \"1:2:3:4\""),
        ("{.a[9999999999]}", "invalid array index \"9999999999\""),
        ("{.a[::0]}", "step must be > 0"),
        ("{..}", r#"expected a name after .. at "}""#),
        ("{....a}", r#"expected a name after .. at "..a}""#),
        ("{..['a','b']}", "a union cannot follow .."),
    ];
    for (template, expected) in cases {
        assert_eq!(problem(template), expected, "{template}");
    }
}

#[test]
fn invalid_filters_are_rejected() {
    let cases = [
        (
            "{.a[?(@.b",
            "expected one of == != < <= > >= or ) at the end",
        ),
        (
            "{.a[?(@.b=~'x')]}",
            "expected one of == != < <= > >= or ) at \"=~'x')]}\"",
        ),
        (
            "{.a[?(@.b && @.c)]}",
            "expected one of == != < <= > >= or ) at \"&& @.c)]}\"",
        ),
        (
            "{.a[?(@.b==)]}",
            "expected a path, a string, a number or a bool at \")]}\"",
        ),
        (
            "{.a[?(@.b==nan)]}",
            "expected a path, a string, a number or a bool at \"nan)]}\"",
        ),
        ("{.a[?(1)]}", "a filter has no path"),
        ("{.a[?(@.b==1)}", "expected ] at \"}\""),
        ("{.a[?(@.b[*]==1)]}", "a comparison takes one value a side"),
        ("{.a[?(@['b','c'])]}", "a filter cannot contain a union"),
        ("{.a[?(@.b[?(@.c)])]}", "a filter cannot contain a filter"),
    ];
    for (template, expected) in cases {
        let problem = problem(template);
        assert!(problem.starts_with(expected), "{template}: {problem}");
    }
}

#[test]
fn deeply_nested_ranges_are_rejected() {
    let template = format!("{}{}", "{range .a}".repeat(1000), "{end}".repeat(1000));
    assert_eq!(problem(&template), "more than 32 ranges are nested");
    let template = format!("{}{}", "{range @}".repeat(32), "{end}".repeat(32));
    assert_eq!(print(&template), "");
}

#[test]
fn deeply_nested_filters_do_not_overflow_the_stack() {
    let template = format!("{{{}", ".a[?(@".repeat(100_000));
    assert!(template.parse::<Template>().is_err());
}

#[test]
fn error_names_the_template() {
    let error = "x{.a[x]}".parse::<Template>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid JSONPath \"x{.a[x]}\": invalid array index \"x\""
    );
}

#[test]
fn relaxed_path_needs_no_braces_and_no_dot() {
    for text in [
        "{.metadata.name}",
        "{metadata.name}",
        ".metadata.name",
        "metadata.name",
        "$.metadata.name",
        "{ .metadata['name'] }",
    ] {
        let path = Path::relaxed(text).unwrap();
        let found = cluster()["items"][0].clone();
        assert_eq!(path.find(&found), [&json!("127.0.0.1")], "{text}");
        assert_eq!(path.to_string(), text);
    }
}

#[test]
fn relaxed_path_may_begin_with_brackets() {
    let object = json!([{"n": 1}, {"n": 2}]);
    for text in [
        "[1].n",
        ".[1].n",
        "{[1].n}",
        "{.[?(@.n==2)].n}",
        "[?(@.n==2)].n",
    ] {
        let path = Path::relaxed(text).unwrap();
        assert_eq!(path.find(&object), [&json!(2)], "{text}");
    }
}

#[test]
fn relaxed_path_is_one_path() {
    for text in ["{.a}{.b}", "{.a", ".a}", ".a .b", ".a x", "{.a}x"] {
        assert!(Path::relaxed(text).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn any_template_is_parsed_or_rejected(text in r#"[{}a@$.*,:?()'"\\\\ =!<>0-9\[\]-]{0,40}"#) {
        if let Ok(template) = text.parse::<Template>() {
            let _ = template.render(&cluster());
        }
        if let Ok(path) = Path::relaxed(&text) {
            let _ = path.find(&cluster());
        }
    }
}

//! Tables as the user sees them.

use proptest::prelude::*;

use super::*;

const PIPE: Layout = Layout {
    wide: false,
    no_headers: false,
    width: None,
};
const NARROW: Layout = Layout {
    width: Some(40),
    ..PIPE
};

/// Returns a table like that of `list`: names may be shortened, and node and age may be dropped.
fn locks(rows: &[[&str; 5]]) -> Table {
    let columns = vec![
        Column::new("Lock").flexible(),
        Column::new("holder").flexible(),
        Column::new("token").priority(1),
        Column::new("held"),
        Column::new("node").wide_only(),
    ];
    let row = |row: &[&str; 5]| row.iter().map(ToString::to_string).collect();
    Table {
        columns,
        rows: rows.iter().map(row).collect(),
    }
}

fn assert_fits(text: &str, width: usize) {
    for line in text.lines() {
        assert!(line.width() <= width, "{line:?} is wider than {width}");
        assert_eq!(line.trim_end(), line);
    }
}

#[test]
fn columns_are_separated_by_three_spaces() {
    let table = locks(&[
        ["orders", "web-1", "17000", "5m30s", "n1"],
        ["mail", "", "0", "", ""],
    ]);
    assert_eq!(
        table.render(&PIPE),
        concat!(
            "LOCK     HOLDER   TOKEN   HELD\n",
            "orders   web-1    17000   5m30s\n",
            "mail     <none>   0       <none>\n",
        )
    );
}

#[test]
fn wide_prints_all_columns() {
    let wide = Layout { wide: true, ..PIPE };
    let table = locks(&[["orders", "web-1", "17", "5s", "n1"]]);
    assert_eq!(
        table.render(&wide),
        concat!(
            "LOCK     HOLDER   TOKEN   HELD   NODE\n",
            "orders   web-1    17      5s     n1\n",
        )
    );
}

#[test]
fn headers_can_be_left_out() {
    let bare = Layout {
        no_headers: true,
        ..PIPE
    };
    let table = locks(&[["a", "web-1", "1", "5s", "n1"]]);
    assert_eq!(table.render(&bare), "a   web-1   1   5s\n");
    assert_eq!(locks(&[]).render(&bare), "");
}

#[test]
fn table_without_rows_has_its_headers() {
    assert_eq!(locks(&[]).render(&PIPE), "LOCK   HOLDER   TOKEN   HELD\n");
    assert_eq!(Table::new(Vec::new()).render(&NARROW), "\n");
}

#[test]
fn missing_cells_are_none_and_surplus_ones_dropped() {
    let table = Table {
        columns: vec![Column::new("a"), Column::new("b")],
        rows: vec![vec![], vec!["1".into(), "2".into(), "3".into()]],
    };
    assert_eq!(
        table.render(&PIPE),
        "A        B\n<none>   <none>\n1        2\n"
    );
}

#[test]
fn hostile_cells_stay_on_their_line() {
    let table = locks(&[
        [
            "a\nLOCK   forged",
            "\u{1b}[2J\u{1b}]0;x\u{7}",
            "1",
            "5s",
            "",
        ],
        ["b\r\u{202e}c", "web", "2", "6s", ""],
    ]);
    assert_eq!(
        table.render(&PIPE),
        concat!(
            "LOCK               HOLDER                     TOKEN   HELD\n",
            "a\\nLOCK   forged   \\u{1b}[2J\\u{1b}]0;x\\u{7}   1       5s\n",
            "b\\r\\u{202e}c       web                        2       6s\n",
        )
    );
}

#[test]
fn hostile_header_is_escaped() {
    let table = Table::new(vec![Column::verbatim("a\n\u{1b}b")]);
    assert_eq!(table.render(&PIPE), "a\\n\\u{1b}b\n");
}

#[test]
fn wide_characters_are_aligned() {
    let table = locks(&[
        ["注文/42", "web-1", "1", "5s", ""],
        ["launch-🚀", "web-2", "2", "6s", ""],
        ["x", "web-3", "3", "7s", ""],
    ]);
    assert_eq!(
        table.render(&PIPE),
        concat!(
            "LOCK        HOLDER   TOKEN   HELD\n",
            "注文/42     web-1    1       5s\n",
            "launch-🚀   web-2    2       6s\n",
            "x           web-3    3       7s\n",
        )
    );
}

#[test]
fn narrow_terminal_drops_unimportant_columns_first() {
    let table = locks(&[["orders/42", "web-7c9d-x2x4q", "17000", "5m30s", "n1"]]);
    let text = table.render(&NARROW);
    assert_eq!(
        text,
        concat!(
            "LOCK        HOLDER           HELD\n",
            "orders/42   web-7c9d-x2x4q   5m30s\n",
        )
    );
    assert_fits(&text, 40);
}

#[test]
fn columns_for_wide_are_dropped_before_others() {
    let layout = Layout {
        wide: true,
        ..NARROW
    };
    let table = locks(&[["orders/42", "web-1", "17000", "5m30s", "node-1"]]);
    assert_eq!(
        table.render(&layout),
        concat!(
            "LOCK        HOLDER   TOKEN   HELD\n",
            "orders/42   web-1    17000   5m30s\n",
        )
    );
}

#[test]
fn narrow_terminal_then_shortens_the_widest_cells() {
    let table = locks(&[
        [
            "team/shop/orders/42",
            "web-7c9d5b6f8-x2x4q",
            "1",
            "5m30s",
            "",
        ],
        ["a", "b", "2", "12m", ""],
    ]);
    let text = table.render(&NARROW);
    assert_eq!(
        text,
        concat!(
            "LOCK              HOLDER           HELD\n",
            "team/shop/orde…   web-7c9d5b6f8…   5m30s\n",
            "a                 b                12m\n",
        )
    );
    assert_fits(&text, 40);
}

#[test]
fn wide_characters_fit_40_columns() {
    let table = locks(&[
        [
            "注文番号注文番号注文番号",
            "担当者担当者担当者担当者",
            "1",
            "5m",
            "",
        ],
        ["🚀🚀🚀🚀🚀🚀🚀🚀🚀🚀🚀", "\u{1b}[31mred", "2", "6m", ""],
    ]);
    let text = table.render(&NARROW);
    assert_fits(&text, 40);
    assert_eq!(text.lines().count(), 3);
}

#[test]
fn very_long_names_fit_40_columns() {
    let long = "x".repeat(1000);
    let table = locks(&[[&long, &long, "1", "5m", ""]]);
    assert_fits(&table.render(&NARROW), 40);
}

#[test]
fn tiny_terminal_keeps_the_beginnings_of_names() {
    let tiny = Layout {
        width: Some(10),
        ..PIPE
    };
    let table = locks(&[["team/shop/orders", "web-7c9d5b6f8", "1", "5m", ""]]);
    assert_eq!(
        table.render(&tiny),
        concat!("LOCK       HOLDER     HELD\n", "team/sh…   web-7c9…   5m\n",)
    );
}

#[test]
fn pipe_gets_every_cell_whole() {
    let long = "x".repeat(500);
    let table = locks(&[[&long, &long, "1", "5m", ""]]);
    assert_eq!(
        table.render(&PIPE).lines().nth(1),
        Some(format!("{long}   {long}   1       5m").as_str())
    );
}

proptest! {
    #[test]
    fn any_cell_stays_on_its_line(cells in prop::array::uniform5(any::<String>())) {
        let table = locks(&[cells.each_ref().map(String::as_str)]);
        for width in [None, Some(40)] {
            let text = table.render(&Layout { wide: true, width, ..PIPE });
            prop_assert_eq!(text.lines().count(), 2);
            prop_assert!(!text.replace('\n', "").contains(char::is_control));
        }
    }

    #[test]
    fn any_text_fits_40_columns(cells in prop::array::uniform5(any::<String>())) {
        let table = locks(&[[&cells[0], &cells[1], "1", "5m", ""]]);
        for line in table.render(&NARROW).lines() {
            prop_assert!(line.width() <= 40, "{:?} is {} wide", line, line.width());
        }
    }
}

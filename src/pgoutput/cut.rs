//! The beginning of an Insert message whose end was not kept.

use super::cursor::Cursor;
use super::error::ParseError;
use super::tuple::Column;

/// What an Insert message begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutInsert<'a> {
    /// The table's OID.
    pub relation_id: u32,
    /// The columns that are whole.
    pub columns: Vec<Column<'a>>,
}

/// Reads the beginning of a message; `None` where it is no Insert.
///
/// # Errors
/// When it is too short to tell of which table the row is, or no Insert begins so.
pub fn parse_cut(data: &[u8]) -> Result<Option<CutInsert<'_>>, ParseError> {
    let Some((b'I', body)) = data.split_first() else { return Ok(None) };
    let mut cursor = Cursor::new("Insert", body);
    let relation_id = cursor.u32("relation id")?;
    if cursor.u8("kind of tuple")? != b'N' {
        return Err(cursor.unexpected_byte("kind of tuple"));
    }
    let count = cursor.u16("number of columns")?;
    let columns = (0..count).map_while(|_| Column::read(&mut cursor).ok()).collect();
    Ok(Some(CutInsert { relation_id, columns }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_before_the_cut_are_there() {
        let mut message = b"I\0\0\0\x07N\0\x03t\0\0\0\x02ab".to_vec();
        message.push(b'n');
        message.extend(b"t\0\x10\0\0xxxx");
        let cut = parse_cut(&message).unwrap().unwrap();
        assert_eq!(cut, CutInsert { relation_id: 7, columns: vec![Column::Text(b"ab"), Column::Null] });
        assert_eq!(parse_cut(b"U\0\0\0\x07"), Ok(None));
        assert!(parse_cut(b"I\0\0").is_err() && parse_cut(b"I\0\0\0\x07X\0\0").is_err());
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(data: Vec<u8>) {
            let _ = parse_cut(&data);
        }
    }
}

"""The credentials of a client, out of files: the accepted files, and the sentences that name a bad one."""

import ssl
from pathlib import Path

import pytest
from certificates import Authority, add_pass_phrase

from omq.credentials import client_context, read_id


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_an_id_is_the_one_line_of_its_file(tmp_path: Path, end: bytes) -> None:
    file = tmp_path / "id"
    file.write_bytes(b"alice: a secret \xff" + end)
    assert read_id(file) == read_id(str(file)) == b"alice: a secret \xff"


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n", b"alice:secret\n\n", b"alice:secret\nbob:secret\n"])
def test_a_file_with_no_line_or_several_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "id"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"must have one line, NAME:SECRET$") as caught:
        read_id(file)
    assert str(file) in str(caught.value)
    assert "secret" not in str(caught.value)


def test_each_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    shown = authority.issue("localhost")
    absent, nonsense = tmp_path / "absent", tmp_path / "nonsense"
    nonsense.write_text("nonsense")
    with pytest.raises(ValueError, match=f"^{absent}: No such file or directory$"):
        read_id(absent)
    for files in ((absent, None, None), (None, absent, None), (None, shown.cert, absent)):
        with pytest.raises(ValueError, match=f"^{absent}: No such file or directory$"):
            client_context(*files)
    with pytest.raises(ValueError, match=f"^{nonsense}: no certificate in PEM$"):
        client_context(nonsense, None, None)
    for key in (nonsense, authority.issue("other", "other").key):
        with pytest.raises(ValueError, match=f"^{shown.cert}: no certificate in PEM with its key$"):
            client_context(authority.file, shown.cert, key)


def test_a_key_without_a_certificate_or_with_a_pass_phrase_is_refused_and_not_asked_for(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    shown = authority.issue("localhost")
    with pytest.raises(ValueError, match=f"^{shown.key}: a key needs its certificate, too$"):
        client_context(authority.file, None, shown.key)
    add_pass_phrase(shown.key)
    with pytest.raises(ValueError, match=f"^{shown.key}: a key with a pass phrase cannot be used$"):
        client_context(authority.file, shown.cert, shown.key)
    shown.cert.write_bytes(shown.key.read_bytes() + shown.cert.read_bytes())
    with pytest.raises(ValueError, match=f"^{shown.cert}: a key with a pass phrase cannot be used$"):
        client_context(authority.file, shown.cert, None)


def test_a_context_checks_the_server_by_the_newest_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    shown = authority.issue("localhost")
    context = client_context(authority.file, shown.cert, shown.key)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1

"""Files of other tools: each is read with the values that its tool reads, or refused in words.

- cases_of_*.py: files that the tests write with the tools of the extra `dev`.
- golden/: small files of tools and versions that need environments of their own, with their values;
  make/ has the scripts that wrote them, `environments.txt` the versions; `make foreign-files`.
"""

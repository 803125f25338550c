"""A released model beside fresh data: what is measured, judged, said, drawn and logged."""
